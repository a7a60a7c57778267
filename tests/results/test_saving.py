"""Results in files: what comes back, what a file lacks, and files that are not what they should be."""

import copy
import dataclasses
import hashlib
import json
import pickle
import random
import subprocess
import sys
import typing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.checkpoint_file import read, write
from steinkern.core.notices import Notice, Phrase

DATA = jnp.array([0.5, 1.0])


def log_density(parameters, data):
    return -0.5 * jnp.sum((parameters["weights"] - data) ** 2) - parameters["scale"]


def plain_density(x):
    return -0.5 * jnp.sum(x**2)


TARGET = sk.LogDensity(log_density, support={"scale": sk.positive})


@pytest.fixture(scope="module")
def result():
    particles = {"weights": jr.normal(jr.key(1), (6, 2)), "scale": jnp.linspace(0.5, 2.0, 6)}
    found = sk.fit(jr.key(0), TARGET, sk.svgd(), particles, DATA, num_steps=3, record_particles=True)
    told = (Notice("rate", "too long steps: ", Phrase.LOWER_RATE, "."),)
    return dataclasses.replace(found, warnings=told)


@pytest.fixture(scope="module")
def sampled():
    return sk.sample(jr.key(0), plain_density, jnp.zeros(2), 20)


@pytest.fixture
def path(result, tmp_path):
    return result.save(tmp_path / "run.result")


def assert_same(one, other):
    """The same values of the same types, through dataclasses and containers."""
    assert type(one) is type(other)
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray | jax.Array):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for entry, again in zip(one, other, strict=True):
            assert_same(entry, again)
    else:
        assert one == other or one != one
        assert getattr(one, "code", None) == getattr(other, "code", None)


def assert_same_result(before, after):
    assert type(before) is type(after)
    for field in dataclasses.fields(before):
        if field.name not in ("target", "sampler", "loop", "settings"):
            assert_same(getattr(before, field.name), getattr(after, field.name))
    assert {name: value for name, value in after.settings.items() if name != "versions"} == before.settings


def test_particles_history_warnings_verdict_and_settings_come_back(result, path):
    again = sk.load(path)
    assert_same_result(result, again)
    assert again.warnings[0].code == "rate"
    assert again.warnings[0].fragments[1] is Phrase.LOWER_RATE
    assert again.settings["versions"]["steinkern"]
    assert again.summary() == result.summary()
    assert repr(again) == repr(result)
    assert again.sampler_name == "SVGD"


@pytest.mark.thorough
def test_the_quality_and_the_cost_of_sample_come_back(sampled, tmp_path):
    again = sk.load(sampled.save(tmp_path / "run.result"), target=plain_density)
    assert_same_result(sampled, again)
    assert again.quality.r_hat == sampled.quality.r_hat
    assert again.cost == sampled.cost
    assert isinstance(again.points, np.ndarray)
    np.testing.assert_allclose(again.scores(), sampled.scores())


@pytest.mark.thorough
def test_a_file_with_the_former_name_of_a_history_is_read(sampled, tmp_path):
    def with_former_name(notes, arrays, settings):
        history = notes["fields"]["history"]
        history["velocity_norm"] = history.pop("mean_score")

    path = rewritten(sampled.save(tmp_path / "run.result"), with_former_name)
    assert_same_result(sampled, sk.load(path))


@pytest.mark.thorough
def test_a_new_process_reads_a_result_of_sample(sampled, tmp_path):
    path = sampled.save(tmp_path / "run.result")
    code = f"import steinkern; print(type(steinkern.load({str(path)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Sampled", done.stderr


def test_a_loaded_result_predicts_draws_and_starts_a_fit(result, path):
    again = sk.load(path)

    def first(parameters, row):
        return parameters["weights"][0] * row

    np.testing.assert_allclose(again.predict(first, DATA).values, result.predict(first, DATA).values, rtol=1e-12)
    assert again.resample(jr.key(0), 3).points.shape == (3, 2 + 1)
    further = sk.fit(jr.key(0), TARGET, sk.ensemble(), again, DATA, num_steps=1)
    assert further.num_steps == 4


def test_a_page_is_written_with_and_without_the_target(result, path, tmp_path):
    without = sk.load(path).report(tmp_path / "one").read_text()
    assert "log_density" in without
    assert "steinkern.load(path, target=...)" in without
    assert "IMQ kernel" in sk.load(path, target=TARGET).report(tmp_path / "two", DATA).read_text()


def test_what_needs_the_target_says_so_and_works_where_it_is_given(result, path):
    without = sk.load(path)
    with pytest.raises(ValueError, match=r"no target: it was read from a file.*`steinkern.load\(path, target="):
        without.scores(DATA)
    with pytest.raises(ValueError, match="this result has no target"):
        without.to_arviz(DATA)
    with pytest.raises(ValueError, match="place 0 was read without one"):
        sk.combine([without, without])
    again = sk.load(path, target=TARGET)
    np.testing.assert_allclose(again.scores(DATA), result.scores(DATA), rtol=1e-12)
    assert len(sk.combine([again, result]).points) == 12
    with pytest.raises(ValueError, match="Give `fit` a sampler"):
        sk.fit(jr.key(0), TARGET, again.sampler, again, DATA, num_steps=1)


def test_a_target_of_other_coordinates_is_refused(path, tmp_path):
    with pytest.raises(ValueError, match="maps the result's unconstrained coordinates to other parameters"):
        sk.load(path, target=sk.LogDensity(log_density))
    simplex = sk.LogDensity(log_density, support={"weights": sk.simplex})
    with pytest.raises(ValueError, match="`target` has 2 unconstrained coordinates, the result 3"):
        sk.load(path, target=simplex)


def with_particles(result, particles):
    """The result with other particles; the rest does not matter for their way through a file."""
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(particles)]
    history = dataclasses.replace(result.history, particles=None)
    return dataclasses.replace(
        result, particles=particles, points=np.concatenate(leaves, axis=1), history=history, verdict=sk.Verdict(None)
    )


@pytest.mark.parametrize(
    "particles",
    [
        np.arange(6.0).reshape(3, 2),
        jnp.arange(3.0),
        {"b": np.ones((3, 2), np.float32), "a": [np.zeros((3, 1)), (np.ones(3), None)]},
        {1: jnp.zeros((3, 2)), 0: {"x": jnp.ones(3)}},
        (jnp.zeros((3, 2), jnp.bfloat16),),
    ],
)
def test_containers_of_arrays_come_back_as_they_were(result, particles, tmp_path):
    again = sk.load(with_particles(result, particles).save(tmp_path / "run.result"))
    assert_same(particles, again.particles)


class Line(eqx.Module):
    slope: jax.Array
    level: jax.Array
    activation: typing.Any = eqx.field(static=True, default=None)


class Pair(typing.NamedTuple):
    one: jax.Array
    other: jax.Array


@pytest.mark.parametrize(
    "inner", [Line(jnp.zeros((3, 2)), jnp.ones(3), jnp.tanh), Pair(jnp.zeros((3, 2)), jnp.ones(3))]
)
def test_particles_of_other_classes_need_an_example(result, inner, tmp_path):
    particles = {"inner": inner}
    path = with_particles(result, particles).save(tmp_path / "run.result")
    name = type(inner).__name__
    with pytest.raises(
        ValueError, match=rf"`like` is missing: the particles are of the class {name}, .*\[\(2,\), \(\)\]"
    ):
        sk.load(path)
    with pytest.raises(
        ValueError, match=r"`like` must be one particle, with arrays of shapes \[\(2,\), \(\)\], got \[\]"
    ):
        sk.load(path, like={})
    example = jax.tree.map(lambda leaf: leaf[0], particles)
    assert_same(particles, sk.load(path, like=example).particles)
    bare = sk.load(path, like=[np.zeros(2), np.zeros(())]).particles
    assert isinstance(bare, list)


def test_shared_parameters_come_back(tmp_path):
    parameters = {"line": Line(jnp.array(2.0), jnp.arange(3.0)), "other": jnp.ones(2)}
    particles, shared = sk.split(parameters, "line.level")
    target = sk.LogDensity(lambda p: -(p["line"].level ** 2) - jnp.sum(p["other"]), shared=shared)
    result = sk.fit(jr.key(0), target, sk.half_bayesian(sk.svgd(), 0.1), particles, num_steps=2)
    path = result.save(tmp_path / "run.result")
    one = jax.tree.map(lambda leaf: leaf[0], particles)
    with pytest.raises(ValueError, match=r"`target` is missing: the shared parameters in .* are of the class Line"):
        sk.load(path, like=one)
    again = sk.load(path, target=target, like=one)
    assert_same(jax.tree.leaves(result.shared), jax.tree.leaves(again.shared))
    assert not np.allclose(again.shared["other"], 1.0)

    def line(p, row):
        return p["line"].slope * row + p["line"].level

    # Two targets, two programs.
    np.testing.assert_allclose(again.predict(line, DATA).values, result.predict(line, DATA).values, rtol=1e-12)


def test_double_precision_stays_where_jax_has_single(path, result):
    with jax.enable_x64(False):
        again = sk.load(path)
        assert isinstance(again.points, np.ndarray)
        assert again.points.dtype == np.float64
    np.testing.assert_array_equal(again.points, result.points)


def test_a_file_can_be_saved_again_with_the_versions_of_the_run(path, tmp_path):
    again = sk.load(path)
    told = dataclasses.replace(again, settings={**again.settings, "versions": {"steinkern": "0.0.7"}})
    assert sk.load(told.save(tmp_path / "more.result")).settings["versions"] == {"steinkern": "0.0.7"}


def test_a_place_that_cannot_be_written_to_is_named(result, tmp_path):
    with pytest.raises(OSError, match=r"`path` .*no/run.result cannot be written to: No such file or directory"):
        result.save(tmp_path / "no" / "run.result")


@pytest.mark.parametrize("place", ["", 3, None])
def test_a_place_that_names_no_file_is_refused(result, place, as_installed):
    with pytest.raises(ValueError, match=r"`path` must be the name of a file, got"):
        result.save(place)


# Files that are not what they should be.


def rewritten(path, change):
    """The file with another content and a right checksum, as someone who knows the format writes it."""
    contents = read(path, kind="result")
    notes = json.loads(json.dumps(contents.notes))
    arrays = list(contents.arrays)
    settings = dict(contents.settings)
    change(notes, arrays, settings)
    write(path, contents._replace(notes=notes, arrays=arrays, settings=settings), kind="result")
    return path


def other_class(notes, arrays, settings):
    notes["class"] = "os.system"


def other_status(notes, arrays, settings):
    notes["fields"]["status"] = "well"


def text_for_number(notes, arrays, settings):
    notes["fields"]["num_steps"] = "3"


def array_outside(notes, arrays, settings):
    notes["points"]["array"] = 10**6


def negative_array(notes, arrays, settings):
    notes["points"]["array"] = -1


def other_number(notes, arrays, settings):
    arrays[notes["points"]["array"]] = np.zeros((5, 3))


def whole_numbers(notes, arrays, settings):
    arrays[notes["points"]["array"]] = np.zeros((6, 3), np.int64)


def other_history(notes, arrays, settings):
    arrays[notes["fields"]["history"]["step_size"]["array"]] = np.zeros(7)


def marks_of_floats(notes, arrays, settings):
    arrays[notes["fields"]["verdict"]["shift"]["low"]["array"]] = np.zeros(3)


def few_names(notes, arrays, settings):
    arrays[notes["fields"]["verdict"]["names"]["array"]] = np.frombuffer(b'["a"]', np.uint8)


def names_of_numbers(notes, arrays, settings):
    arrays[notes["fields"]["verdict"]["names"]["array"]] = np.frombuffer(b"[1, 2, 3]", np.uint8)


def deep_tree(notes, arrays, settings):
    tree = None
    for _ in range(400):
        tree = {"list": [tree]}
    notes["particles"] = tree


def no_particles(notes, arrays, settings):
    notes["particles"] = {"dict": []}


def list_of_settings(notes, arrays, settings):
    notes["fields"] = []


def unhashable_key(notes, arrays, settings):
    notes["particles"] = {"dict": [[["a"], None]]}


def huge_steps(notes, arrays, settings):
    notes["fields"]["num_steps"] = 10**100


CHANGES = [
    other_class, other_status, text_for_number, array_outside, negative_array, other_number, whole_numbers,
    other_history, marks_of_floats, few_names, names_of_numbers, deep_tree, no_particles, list_of_settings,
    unhashable_key, huge_steps,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_someone_has_written_anew_is_refused(path, change):
    with pytest.raises(ValueError, match=r"`path` is not a result: .*run.result was altered, or written by another"):
        sk.load(rewritten(path, change))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the result .* is truncated or altered"),
        (b"steinkern result 1\n", "the result .* is truncated or altered"),
        (b"steinkern checkpoint 1\n" + bytes(100), ".*run.result is a checkpoint, not a result"),
        (b"\x80\x04.", "the result .* is truncated or altered, or no file of steinkern"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    (tmp_path / "run.result").write_bytes(content)
    with pytest.raises(ValueError, match=f"`path` is not a result: {message}"):
        sk.load(tmp_path / "run.result")


def test_every_changed_byte_and_every_cut_is_seen(path):
    whole = path.read_bytes()
    generator = random.Random(0)
    for _ in range(60):
        place, cut = generator.randrange(len(whole)), generator.randrange(len(whole))
        changed = whole[:place] + bytes([whole[place] ^ (1 << generator.randrange(8))]) + whole[place + 1 :]
        for content in (changed, whole[:cut]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="`path` is not a result"):
                sk.load(path)


def test_random_json_in_a_valid_file_raises_nothing_but_the_refusal(path):
    """Entries of the header exchanged for others, with a right checksum: a result that works, or a `ValueError`."""
    whole = path.read_bytes()
    generator = random.Random(1)
    wrong = [None, True, -1, 2**70, 1.5, "x", [], {}, {"array": 0}, {"dict": [["a", {"array": 1, "jax": True}]]}]
    for _ in range(120):
        path.write_bytes(whole)

        def exchange(notes, arrays, settings):
            node = notes
            while True:
                keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                key = generator.choice(keys)
                inner = node[key]
                if isinstance(inner, dict | list) and inner and generator.random() < 0.8:
                    node = inner
                else:
                    node[key] = copy.deepcopy(generator.choice(wrong))
                    return

        try:
            again = sk.load(rewritten(path, exchange))
        except ValueError as error:
            assert str(error).startswith("`")  # noqa: PT017 (either outcome is right)
        else:
            again.summary()
            repr(again)


def test_the_file_holds_no_code(path, result):
    content = path.read_bytes()
    header = json.loads(content[len(b"steinkern result 1\n") + 8 :].split(b'"arrays"')[0].rstrip(b", ") + b"}")
    assert header["notes"]["class"] == "Result"
    assert hashlib.sha256(content[:-32]).digest() == content[-32:]


# Other processes.


def total(result):
    return float(np.sum(result.points))


def test_a_result_goes_through_a_pickle_without_its_step_rule(result):
    again = pickle.loads(pickle.dumps(result))
    assert_same_result(result, again)
    np.testing.assert_allclose(again.scores(DATA), result.scores(DATA), rtol=1e-12)
    assert again.target.function is log_density
    assert (again.sampler_name, again.loop) == ("SVGD", None)
    langevin = sk.fit(jr.key(0), TARGET, sk.sgld(1e-3), result.particles, DATA, num_steps=1)
    further = pickle.loads(pickle.dumps(langevin))
    assert isinstance(further.sampler, sk.SGLD)
    assert sk.fit(jr.key(0), TARGET, further.sampler, further, DATA, num_steps=1).num_steps == 2


@pytest.mark.thorough
def test_results_come_back_from_a_process_pool(result):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        # The other process has JAX's default precision, which is single.
        assert pool.submit(total, result).result() == pytest.approx(total(result), rel=1e-5)


def test_a_function_that_cannot_be_sent_is_named_with_the_way_out(result):
    def inner(parameters, data):
        return log_density(parameters, data)

    for function, name in (
        (inner, "inner"),
        (lambda p, d: inner(p, d), "<lambda>"),
        (jax.jit(log_density), "log_density"),
    ):
        local = dataclasses.replace(result, target=sk.LogDensity(function))
        with pytest.raises(TypeError, match=rf"{name}`, which another process cannot import.*result.save\(path\)"):
            pickle.dumps(local)
    assert_same_result(local, copy.copy(local))
    assert_same_result(local, copy.deepcopy(local))
    cloudpickle = pytest.importorskip("cloudpickle", reason="comes with PyMC")
    again = pickle.loads(cloudpickle.dumps(local))
    assert isinstance(again.sampler, sk.SVGD)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path` must be a file that .*, but there is no .*nowhere\.result"):
        sk.load(tmp_path / "nowhere.result")
