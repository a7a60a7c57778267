"""A run goes on only from what is whole and its own: damage pushes nothing out, other code and settings are seen."""

import os

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.core import checkpoint as files
from steinkern.core.checkpoint_file import CheckpointContents, write
from steinkern.inference import resume
from tests.inference.test_checkpoint import (
    STARTS,
    Killed,
    assert_same_end,
    copied,
    finished,
    fit_gaussian,
    gaussian,
    killer,
)

__all__ = ["finished"]  # a fixture

# Damage.


@pytest.mark.parametrize("harmed", [1, 2])
def test_checkpoints_after_damage_are_kept_and_gone_on_from(harmed, finished, tmp_path):
    directory = copied(finished, tmp_path)
    for path in sorted(directory.iterdir())[-harmed:]:
        path.write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning, match=r"truncated or altered"), pytest.raises(Killed):
        fit_gaussian(directory, every=2, callback=killer(19))
    assert sorted(path.name for path in directory.glob("*.ckpt")) == [
        "step-000000000016.ckpt",
        "step-000000000018.ckpt",
    ]
    seen = []
    result = fit_gaussian(directory, every=2, callback=lambda step, state, info: seen.append(step))
    assert seen == [19, 20]
    assert_same_end(result, finished[1])


def test_a_warning_of_damage_points_at_the_call_of_fit(finished, tmp_path):
    directory = copied(finished, tmp_path)
    max(directory.iterdir()).write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning) as warned:
        sk.fit(jr.key(0), gaussian, sk.svgd(), STARTS, np.zeros(2), num_steps=20, checkpoint=directory)
    assert [one.filename for one in warned] == [__file__]


def test_what_claims_a_later_step_pushes_no_checkpoint_out(tmp_path):
    (tmp_path / "step-000000000900.ckpt").write_bytes(b"")
    (tmp_path / "step-none.ckpt").write_bytes(b"")
    store = files.CheckpointDirectory(tmp_path, {})
    for step in (1, 2, 3):
        store.save(step, [], {})
    assert {"step-000000000002.ckpt", "step-000000000003.ckpt"} < set(os.listdir(tmp_path))
    with pytest.warns(RuntimeWarning, match="The one before it is used"):
        assert store.latest().step == 3


def test_a_checkpoint_under_the_name_of_another_step_is_damage(tmp_path):
    write(tmp_path / "step-000000000009.ckpt", CheckpointContents(1, {}, {}, []))
    with pytest.warns(RuntimeWarning, match="holds step 1, which is not the step in its name"):
        assert files.CheckpointDirectory(tmp_path, {}).latest() is None


def test_a_checkpoint_that_cannot_be_opened_is_damage(finished, tmp_path):
    directory = copied(finished, tmp_path)
    (directory / "step-000000000099.ckpt").mkdir()
    with pytest.warns(RuntimeWarning, match="cannot be read: Is a directory"):
        assert_same_end(fit_gaussian(directory), finished[1])


@pytest.mark.parametrize(
    "notes",
    [
        {"log densities": ["a"] * 5}, {"log densities": [[1.0]] * 5}, {"log densities": [0.0]}, {"log densities": None},
        {"stride": True}, {"stride": 0}, {"stride": 2**70}, {"stride": 3}, {"stride": "1"}, {"versions": [1]},
        {"computes": [1]}, {"scores": 3}, {"libraries": "all"},
    ],
    ids=str,
)  # fmt: skip
def test_notes_that_are_forged_are_refused(notes, finished, tmp_path):
    saved = files.read(max(finished[0].iterdir()))
    write(tmp_path / "step-000000000020.ckpt", saved._replace(notes=saved.notes | notes))
    with pytest.raises(ValueError, match="`checkpoint`"):
        fit_gaussian(tmp_path)


def test_what_a_checkpoint_could_not_hold_is_refused_before_the_first_step(tmp_path):
    def update(updates, state, parameters=None):
        return updates, state

    odd = optax.GradientTransformation(lambda parameters: jnp.zeros((), jnp.complex64), update)
    with pytest.raises(ValueError, match="the state of the sampler has an array of complex64"):
        fit_gaussian(tmp_path, sampler=sk.svgd(optimiser=odd), callback=killer(1))


def test_a_long_list_that_a_function_closes_over_is_no_hindrance(tmp_path):
    store = files.CheckpointDirectory(tmp_path, {"key": 1}, {"target": "long" * 2**21, "sampler": "short"})
    store.save(1, [], {})
    assert store.latest().settings == {"key": 1, "target": "8388610 characters, not kept", "sampler": "short"}


# Other settings.


@pytest.mark.parametrize(
    ("switch", "value"),
    [("jax_enable_x64", False), ("jax_default_prng_impl", "rbg"), ("jax_threefry_partitionable", False)],
)
def test_another_switch_of_precision_or_random_numbers_is_refused(switch, value, in_single):
    before = getattr(jax.config, switch)
    jax.config.update(switch, value)
    try:
        with pytest.raises(ValueError, match=f"its {switch} is {before}, here it is {value}"):
            in_single()
    finally:
        jax.config.update(switch, before)


@pytest.fixture(scope="module")
def in_single(tmp_path_factory):
    """A run in single precision, taken once and to be called again."""
    directory = tmp_path_factory.mktemp("single")
    options = {"particles": STARTS.astype("float32"), "data": np.zeros(2, "float32"), "key": jr.key(0)}
    fit_gaussian(directory, 3, **options)
    return lambda: fit_gaussian(directory, 3, **options)


@pytest.mark.usefixtures("as_installed")
def test_numbers_of_numpy_and_whole_ones_are_the_same_run(finished, tmp_path):
    assert_same_end(fit_gaussian(finished[0], longest_move=100, every=np.int64(5)), finished[1])
    numbers = {"record_every": 2, "tolerance": 2.0**-20, "longest_move": 64.0}
    given = {"record_every": np.int64(2), "tolerance": np.float32(2.0**-20), "longest_move": jnp.asarray(64)}
    fit_gaussian(tmp_path, np.int32(4), **given)
    assert fit_gaussian(tmp_path, 5, **numbers).num_steps == 5


def test_minibatches_are_the_same_with_and_without_double_precision():
    target = sk.Posterior(lambda x: 0.0, lambda x, row: 0.0, 1000)
    rows = np.arange(1000, dtype=np.int32)
    wide = target.batch(rows, 8, jr.key(3))
    with jax.enable_x64(False):
        np.testing.assert_array_equal(target.batch(rows, 8, jr.key(3)), wide)


LOFTY = {"height": 1e5, "scale": 1.0}


def test_a_log_density_that_differs_little_beside_its_size_is_refused(tmp_path, monkeypatch):
    def log_density(x, data):
        return LOFTY["height"] - 0.5 * LOFTY["scale"] * jnp.sum((x - data) ** 2)

    fit_gaussian(tmp_path, 5, target=log_density)
    monkeypatch.setitem(LOFTY, "scale", 1.5)
    jax.clear_caches()
    with pytest.raises(ValueError, match="its log density or data preparation computes something else than it did"):
        fit_gaussian(tmp_path, 9, target=log_density)


# What cannot be compared by what is computed.


def without(path, *names):
    """The newest checkpoint as a version that did not write some of the notes would have left it."""
    newest = max(path.iterdir())
    saved = files.read(newest)
    notes = {name: note for name, note in saved.notes.items() if name not in names}
    notes["versions"] = {name: number for name, number in notes["versions"].items() if name not in names}
    write(newest, saved._replace(notes=notes))


def test_an_older_checkpoint_is_gone_on_from_with_a_word(finished, tmp_path):
    directory = copied(finished, tmp_path)
    without(directory, "computes", "scores", "libraries", "devices")
    with pytest.warns(RuntimeWarning, match=r"^Cannot tell whether .* before checkpoints recorded what .* agree\.$"):
        assert_same_end(fit_gaussian(directory), finished[1])
    with pytest.raises(ValueError, match="its log densities at the first particles were"):
        fit_gaussian(directory, target=lambda x, data: 1.1 * gaussian(x, data))
    with pytest.raises(ValueError, match=r"its sampler\.optimiser.* is -0\.3, here it is -0\.2"):
        fit_gaussian(directory, sampler=sk.svgd(optimiser=0.2))


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (1000, 1000.0, True),  # optax's schedules make a float of their number of steps when they are called
        (1000, 1001.0, False),
        (1, True, False),
        ("steinkern.target.LogDensity", "steinkern.LogDensity", True),
        ("steinkern.kernel_rule.Averaged", "steinkern.AverageMetric", True),
        ("steinkern.reparam.Space", "steinkern.targets.supports.Space", True),
        ("steinkern.target.LogDensity", "steinkern.Posterior", False),
        ("mine.LogDensity", "steinkern.LogDensity", False),
    ],
)
def test_descriptions_of_an_older_checkpoint_may_be_worded_otherwise(before, now, same):
    assert resume._is_same(before, now) is same


def test_elsewhere_scores_and_numbers_of_the_sampler_are_compared(finished, tmp_path, monkeypatch):
    directory = copied(finished, tmp_path)
    versions = resume.versions()
    monkeypatch.setattr(resume, "versions", lambda: versions | {"jax": "99"})

    def renamed(x, data):
        return jnp.sum((x - data) * (data - x)) / 2.0

    with pytest.warns(
        RuntimeWarning, match=r"'jax': '99'.* last digits .* Cannot tell .* another program.* here it is"
    ):
        fit_gaussian(directory, target=renamed)
    with pytest.raises(ValueError, match="its scores at the first particles were"):
        fit_gaussian(directory, target=lambda x, data: gaussian(x, data) + bent(jnp.sum(x)))
    with pytest.raises(ValueError, match=r"its sampler\.optimiser.* is -0\.3, here it is -0\.2"):
        fit_gaussian(directory, sampler=sk.svgd(optimiser=0.2))


@jax.custom_jvp
def bent(x):
    """Zero, with a slope."""
    return jnp.zeros_like(x)


bent.defjvp(lambda values, slopes: (bent(*values), slopes[0]))


def test_other_versions_of_a_library_may_explain_another_program(finished, tmp_path, monkeypatch):
    directory = copied(finished, tmp_path)
    newest = max(directory.iterdir())
    saved = files.read(newest)
    write(newest, saved._replace(notes=saved.notes | {"libraries": {"numpyro": "0.1"}}))
    monkeypatch.setattr(resume, "_libraries", lambda: {"numpyro": "0.2", "scipy": "1"})
    assert_same_end(fit_gaussian(directory), finished[1])  # the same program: there is nothing to explain
    with pytest.warns(RuntimeWarning, match=r"^Cannot tell .* log density or data preparation is another program"):
        fit_gaussian(directory, target=lambda x, data: gaussian(x, data) * 1.0)


OUTSIDE = {"function": lambda x: np.asarray(-0.5 * np.sum(x**2))}


@jax.custom_jvp
def called_back(x, data):
    """A log density that JAX does not see, with a gradient of its own."""
    kind = jax.ShapeDtypeStruct((), x.dtype)
    return jax.pure_callback(lambda x: OUTSIDE["function"](x), kind, x, vmap_method="sequential")


called_back.defjvp(lambda values, slopes: (called_back(*values), -jnp.vdot(values[0], slopes[0])))


def test_host_callbacks_are_told_by_values_and_a_word(tmp_path, monkeypatch):
    fit_gaussian(tmp_path, 2, target=called_back)
    monkeypatch.setitem(OUTSIDE, "function", lambda x: np.asarray(-0.5 * np.dot(x, x)))
    with pytest.warns(RuntimeWarning, match=r"^Cannot tell .* it calls a host callback.* scores .* agree\.$"):
        fit_gaussian(tmp_path, 3, target=called_back)
    monkeypatch.setitem(OUTSIDE, "function", lambda x: np.asarray(-0.5001 * np.sum(x**2)))
    with pytest.raises(ValueError, match="its log densities at the first particles were"):
        fit_gaussian(tmp_path, 4, target=called_back)
