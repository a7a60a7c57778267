"""Results in files: what comes back, what a file lacks, and files that are not what they should be."""

import dataclasses
import pickle
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

DATA = jnp.array([0.5, 1.0])


def log_density(parameters, data):
    return -0.5 * jnp.sum((parameters["weights"] - data) ** 2) - parameters["scale"]


TARGET = sk.LogDensity(log_density, support={"scale": sk.positive})


@pytest.fixture(scope="module")
def result():
    particles = {"weights": jr.normal(jr.key(1), (6, 2)), "scale": jnp.linspace(0.5, 2.0, 6)}
    fitted = sk.fit(jr.key(0), TARGET, sk.svgd(), particles, DATA, num_steps=3, record_particles=True)
    return dataclasses.replace(fitted, warnings=(sk.Notice("rate", "too long steps."),))


@pytest.fixture
def path(result, tmp_path):
    return result.save(tmp_path / "run.npz")


def assert_same(one, other):
    """The same values of the same types, through dataclasses and containers."""
    assert type(one) is type(other)
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray | jax.Array):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    elif isinstance(one, dict | list | tuple):
        assert len(one) == len(other)
        entries = (one.values(), other.values()) if isinstance(one, dict) else (one, other)
        for entry, again in zip(*entries, strict=True):
            assert_same(entry, again)
    else:
        assert one == other or one != one


def assert_same_result(before, after):
    for field in dataclasses.fields(before):
        if field.name not in ("target", "sampler", "loop", "settings"):
            assert_same(getattr(before, field.name), getattr(after, field.name))
    assert {name: after.settings[name] for name in before.settings} == before.settings


def test_all_but_functions_comes_back(result, path):
    again = sk.load(path)
    assert_same_result(result, again)
    assert (again.target, again.sampler, again.loop) == (None, None, None)
    assert again.settings["versions"]["steinkern"]
    assert (again.summary(), repr(again)) == (result.summary(), repr(result))
    assert sk.load(again.save(path)).settings == again.settings


@pytest.mark.thorough
def test_a_result_of_sample_comes_back(tmp_path):
    def density(x):
        return -0.5 * jnp.sum(x**2)

    result = sk.sample(jr.key(0), density, jnp.zeros(2), 20)
    again = sk.load(result.save(tmp_path / "run.npz"), target=density)
    assert_same_result(result, again)
    np.testing.assert_allclose(again.scores(), result.scores())


def test_a_loaded_result_predicts_draws_and_starts_a_fit(result, path):
    again = sk.load(path)

    def first(parameters, row):
        return parameters["weights"][0] * row

    np.testing.assert_allclose(again.predict(first, DATA).values, result.predict(first, DATA).values, rtol=1e-12)
    assert again.resample(jr.key(0), 3).points.shape == (3, 2 + 1)
    assert sk.fit(jr.key(0), TARGET, sk.ensemble(), again, DATA, num_steps=1).num_steps == 4


def test_what_needs_the_target_says_so_and_works_where_it_is_given(result, path, tmp_path):
    without = sk.load(path)
    for call in (lambda: without.scores(DATA), lambda: without.to_arviz(DATA)):
        with pytest.raises(ValueError, match=r"no target: it was read from a file.*`steinkern.load\(path, target="):
            call()
    with pytest.raises(ValueError, match="index 0 was read without one"):
        sk.combine([without, without])
    again = sk.load(path, target=TARGET)
    np.testing.assert_allclose(again.scores(DATA), result.scores(DATA), rtol=1e-12)
    assert len(sk.combine([again, result]).points) == 12
    assert "steinkern.load(path, target=...)" in without.report(tmp_path / "one").read_text()
    assert "IMQ kernel" in again.report(tmp_path / "two", DATA).read_text()


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (None, "maps the result's unconstrained coordinates to other parameters"),
        ({"weights": sk.simplex}, "`target` has 2 unconstrained coordinates, the result 3"),
    ],
)
def test_a_target_of_other_coordinates_is_refused(support, message, path):
    with pytest.raises(ValueError, match=message):
        sk.load(path, target=sk.LogDensity(log_density, support=support))


class Line(eqx.Module):
    slope: jax.Array
    level: jax.Array
    activation: typing.Any = eqx.field(static=True, default=None)


class Pair(typing.NamedTuple):
    one: jax.Array
    other: jax.Array


def line(p, row):
    return p["line"].slope * row + p["line"].level


@pytest.mark.parametrize("kind", [Line, Pair])
def test_particles_of_other_classes_need_an_example(result, kind, tmp_path):
    particles = {"inner": kind(jnp.zeros((6, 2)), jnp.ones(6))}
    history = dataclasses.replace(result.history, particles=None)
    path = dataclasses.replace(result, particles=particles, history=history).save(tmp_path / "run.npz")
    for like in (None, {}, [np.zeros(2)]):
        with pytest.raises(ValueError, match=rf"`like` must be .*\[\(2,\), \(\)\], got.*{kind.__name__}"):
            sk.load(path, like=like)
    assert_same(particles, sk.load(path, like=jax.tree.map(lambda leaf: leaf[0], particles)).particles)
    assert isinstance(sk.load(path, like=[np.zeros(2), np.zeros(())]).particles, list)


def test_shared_parameters_come_back(tmp_path):
    parameters = {"line": Line(jnp.array(2.0), jnp.arange(3.0)), "other": jnp.ones(2)}
    particles, shared = sk.split(parameters, "line.level")
    target = sk.LogDensity(lambda p: -(p["line"].level ** 2) - jnp.sum(p["other"]), shared=shared)
    result = sk.fit(jr.key(0), target, sk.half_bayesian(sk.svgd(), 0.1), particles, num_steps=2)
    path = result.save(tmp_path / "run.npz")
    one = jax.tree.map(lambda leaf: leaf[0], particles)
    with pytest.raises(ValueError, match=r"`target` must be as the run had it, with `shared=` .* of the class Line"):
        sk.load(path, like=one)
    again = sk.load(path, target=target, like=one)
    assert_same(jax.tree.leaves(result.shared), jax.tree.leaves(again.shared))
    assert not np.allclose(again.shared["other"], 1.0)
    np.testing.assert_allclose(again.predict(line, DATA).values, result.predict(line, DATA).values, rtol=1e-12)


def test_a_place_that_cannot_be_written_to_is_refused(result, tmp_path):
    with pytest.raises(OSError, match=r"`path` .*no/run.npz cannot be written to: No such file or directory"):
        result.save(tmp_path / "no" / "run.npz")


def test_what_is_no_result_is_refused(path, tmp_path):
    whole = path.read_bytes()
    for content in (b"", b"\x80\x04.", whole[:-100], whole.replace(b"too long", b"too lang")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"`path` is not a result: .*run.npz is truncated or altered, or no file"):
            sk.load(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ValueError, match="`path` is not a result"):
        sk.load(path)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*nowhere"):
        sk.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        sk.load(tmp_path)


def test_a_result_goes_through_a_pickle_where_its_functions_can_be_imported(result):
    langevin = sk.fit(jr.key(0), TARGET, sk.sgld(1e-3), result.particles, DATA, num_steps=1)
    again = pickle.loads(pickle.dumps(langevin))
    assert_same_result(langevin, again)
    assert sk.fit(jr.key(0), TARGET, again.sampler, again, DATA, num_steps=1).num_steps == 2
