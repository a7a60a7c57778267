"""A run goes on only from what is whole and its own: damage pushes nothing out, other code and settings are seen."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern import checkpoint as files
from steinkern import resume
from steinkern.checkpoint import Saved, write
from steinkern.description import described, without_code

from .test_checkpoint import STARTS, Killed, assert_same_end, copied, finished, fit_gaussian, gaussian, killer

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
    store = files.Store(tmp_path, {})
    for step in (1, 2, 3):
        store.save(step, [], {})
    assert {"step-000000000002.ckpt", "step-000000000003.ckpt"} < set(os.listdir(tmp_path))
    with pytest.warns(RuntimeWarning, match="The one before it is used"):
        assert store.latest().step == 3


def test_a_checkpoint_under_the_name_of_another_step_is_damage(tmp_path):
    write(tmp_path / "step-000000000009.ckpt", Saved(1, {}, {}, []))
    with pytest.warns(RuntimeWarning, match="is of step 1, not of its name's"):
        assert files.Store(tmp_path, {}).latest() is None


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
    with pytest.raises(ValueError, match=r"`checkpoint` cannot hold .* Give long lists"):
        files.Store(tmp_path, {"target": "long" * 2**21})


# Other settings and other code.


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


@pytest.fixture
def as_installed():
    """Without the type checker that tests run under: it would refuse these numbers first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


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


def made(text: str, name: str = "function"):
    """A function from its text, as a script that was edited between two runs has it."""
    names = {"jnp": jnp, "SCALE": 1.0}
    exec(text, names)
    return names[name]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("def function(t): return 0.1 / (t + 1.0)", "def function(t): return 0.01 / (t + 1.0)"),
        ("def function(x): return jnp.sin(x)", "def function(x): return jnp.cos(x)"),
        ("def function(x, scale=1.0): return scale * x", "def function(x, scale=2.0): return scale * x"),
        ("def function(x, *, scale=1.0): return scale * x", "def function(x, *, scale=2.0): return scale * x"),
        ("def function(x): return (lambda y: y + 1)(x)", "def function(x): return (lambda y: y + 2)(x)"),
        ("def help(x): return x + 1\ndef function(x): return help(x)",
         "def help(x): return x + 2\ndef function(x): return help(x)"),
        ("import jax\n@jax.jit\ndef help(x): return x + 1\ndef function(x): return help(x)",
         "import jax\n@jax.jit\ndef help(x): return x + 2\ndef function(x): return help(x)"),
        ("SCALE = 1.0\ndef function(x): return SCALE * x", "SCALE = 2.0\ndef function(x): return SCALE * x"),
        ("class Slope:\n def __call__(self, x): return x\nfunction = Slope().__call__",
         "class Slope:\n def __call__(self, x): return 2 * x\nfunction = Slope().__call__"),
    ],
    ids=["number", "name", "default", "keyword", "inner", "helper", "jitted helper", "global", "method"],
)  # fmt: skip
def test_a_function_that_does_something_else_has_another_digest(before, now):
    first, again, other = described(made(before)), described(made(before)), described(made(now))
    assert first == again != other
    assert without_code(first) == without_code(other)


def test_a_class_of_the_users_is_known_by_its_methods():
    text = (
        "import dataclasses\n@dataclasses.dataclass\nclass Rate:\n base: float\n def __call__(self, t): return {} * t"
    )
    first, other = (described(made(text.format(number), "Rate")(0.5)) for number in (1, 2))
    assert first != other
    assert without_code(first) == without_code(other)


def test_another_derivative_rule_is_seen():
    text = (
        "import jax\n@jax.custom_jvp\ndef function(x): return x\n"
        "@function.defjvp\ndef rule(p, t): return p[0], {} * t[0]"
    )
    first, other = (described(made(text.format(number))) for number in (1, 2))
    assert first != other


def test_what_changes_nothing_leaves_the_digest_as_it_was():
    plain = "def function(x):\n 'One.'\n y = {'a', 'b'}\n return x in {1, 'c', 'd'} or y"
    dressed = "# Why.\n\n\ndef function(z):\n 'Another text.'\n\n w = {'a', 'b'}\n return z in {1, 'c', 'd'} or w"
    assert described(made(plain)) == described(made(dressed))


def test_functions_that_call_one_another_by_many_ways_are_looked_at_once():
    calls = "\n".join(f"def f{i}(x): return f{i + 1}(x) + f{i + 1}(2 * x) + f{(7 * i) % 60}(x)" for i in range(60))
    assert described(made(calls, "f0")) != described(made(calls.replace("f60(2", "f60(3"), "f0"))


def test_a_digest_is_the_same_in_another_process():
    text = "def function(x, s=(1, 'a')): return x in {'a', 'b', 'c', 1, None} or [y for y in s] or jnp.sin(SCALE)"
    script = (
        "from steinkern.description import described\n"
        f"names = {{'SCALE': 1.0, '__name__': 'script'}}\nexec({text!r}, names)\n"
        "print(described(names['function'])['its code'])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == described(made(text))["its code"]


def test_other_code_is_refused_where_python_is_the_same_though_no_value_tells(tmp_path, monkeypatch):
    def tempering(rate):
        return made(f"def function(t): return 1.0 - {rate} / (1.0 + t.astype(float))")

    fit_gaussian(tmp_path, 5, tempering=tempering(0.1))
    with pytest.raises(ValueError, match=r"its tempering.its code is \w+, here it is \w+: a function of the same name"):
        fit_gaussian(tmp_path, 9, tempering=tempering(0.2))
    assert fit_gaussian(tmp_path, 6, tempering=tempering(0.1)).num_steps == 6
    versions = resume._versions()
    monkeypatch.setattr(resume, "_versions", lambda: versions | {"python": "3.99.0"})
    with pytest.warns(RuntimeWarning, match=r"3.99.0.* may differ in its last digits"):
        fit_gaussian(tmp_path, 7, tempering=tempering(0.2))


LOFTY = {"height": 1e5, "scale": 1.0}


def test_a_log_density_that_differs_little_beside_its_size_is_refused(tmp_path, monkeypatch):
    def log_density(x, data):
        return LOFTY["height"] - 0.5 * LOFTY["scale"] * jnp.sum((x - data) ** 2)

    fit_gaussian(tmp_path, 5, target=log_density)
    monkeypatch.setitem(LOFTY, "scale", 1.5)
    jax.clear_caches()
    with pytest.raises(ValueError, match="log densities at the first particles"):
        fit_gaussian(tmp_path, 9, target=log_density)
