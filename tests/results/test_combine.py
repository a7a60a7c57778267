"""Results put together and drawn from, and samplers in the shape of BlackJAX's."""

from functools import partial
from importlib.resources import files

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

pytestmark = pytest.mark.thorough


def log_density(parameters):
    return -0.5 * jnp.sum((parameters["mean"] - 1) ** 2) - parameters["scale"]


TARGET = sk.LogDensity(log_density, support={"scale": sk.positive})
SAMPLER = sk.svgd()


def start(seed, n=5):
    return {"mean": jr.normal(jr.key(seed), (n, 2)), "scale": jnp.exp(jr.normal(jr.key(seed + 50), (n,)))}


@pytest.fixture(scope="module")
def results():
    return [sk.fit(jr.key(i), TARGET, SAMPLER, start(i), num_steps=2 + i) for i in range(2)]


def test_combined_particles_are_those_of_all_results_in_order(results):
    both = sk.combine(results)
    for name in ("mean", "scale"):
        expected = np.concatenate([result.particles[name] for result in results])
        np.testing.assert_array_equal(both.particles[name], expected)
    np.testing.assert_array_equal(both.points, np.concatenate([result.points for result in results]))
    assert both.status is sk.Status.FINISHED
    assert (both.num_steps, len(both.history.step)) == (3, 0)
    assert "10 particles" in both.summary()
    assert "2 steps, finished, 3 steps, finished" in both.message.text


def test_the_status_of_a_combination_is_the_worst(results):
    endless = sk.svgd(optimizer=1e308)
    broken = sk.fit(jr.key(0), TARGET, endless, start(3), num_steps=5, throw=False, max_move=None)
    assert broken.status is sk.Status.DIVERGED
    assert sk.combine([results[0], broken, results[1]]).status is sk.Status.DIVERGED


@pytest.mark.parametrize("make", [sk.combine, lambda results: results[0].resample(jr.key(1), 4)])
def test_a_fit_goes_on_from_the_particles(results, make):
    again = make(results)
    n = len(again.points)
    onward = sk.fit(jr.key(0), TARGET, SAMPLER, again, num_steps=3)
    fresh = sk.fit(jr.key(0), TARGET, SAMPLER, again.particles, num_steps=3)
    np.testing.assert_allclose(onward.points, fresh.points, rtol=1e-10)
    assert onward.points.shape == (n, 3)
    assert onward.num_steps == again.num_steps + 3


def test_resampled_particles_are_different_ones_of_the_result_and_keep_together(results):
    whole = sk.combine(results)
    some = whole.resample(jr.key(0), 7)
    rows = [int(np.flatnonzero((np.asarray(whole.points) == point).all(1))[0]) for point in np.asarray(some.points)]
    assert len(set(rows)) == 7
    np.testing.assert_array_equal(some.particles["mean"], np.asarray(whole.particles["mean"])[rows])
    np.testing.assert_array_equal(some.particles["scale"], np.asarray(whole.particles["scale"])[rows])
    assert sorted(rows) != sorted(np.arange(7))


def test_resampling_is_uniform_with_replacement(results):
    draws = results[0].resample(jr.key(0), 20_000, replace=True).particles["scale"]
    counts = np.array([np.sum(np.asarray(draws) == value) for value in np.asarray(results[0].particles["scale"])])
    assert counts.sum() == 20_000
    np.testing.assert_allclose(counts, 4000, atol=5 * (20_000 * 0.2 * 0.8) ** 0.5)


def test_what_cannot_be_combined_or_drawn_is_refused(results):
    other = sk.fit(jr.key(0), lambda x: -jnp.sum(x**2), SAMPLER, jnp.arange(3.0), num_steps=1)
    halves = []
    for slope in (1.0, 2.0):
        particles, shared = sk.split({"slope": jnp.array(slope), "level": jnp.arange(3.0)}, "level")
        target = sk.LogDensity(lambda p: -(p["level"] ** 2) - p["slope"], shared=shared)
        halves.append(sk.fit(jr.key(0), target, SAMPLER, particles, num_steps=1))
    for wrong, message in (
        ([], "at least one result, got none"),
        ([results[0], other], "of one target: the parameters at index 1"),
        (halves, "shared parameters: those at index 1 differ"),
    ):
        with pytest.raises(ValueError, match=message):
            sk.combine(wrong)
    with pytest.raises(ValueError, match=r"at most the 5 particles there are, got 6. Give `replace=True`"):
        results[0].resample(jr.key(0), 6)
    with pytest.raises(ValueError, match="`num_particles` must be a whole number"):
        results[0].resample(jr.key(0), 0)


DATA = jnp.linspace(-1.0, 2.0, 12)
POSTERIOR = sk.Posterior(
    lambda p: -p["scale"],
    lambda p, y: -0.5 * ((y - p["mean"][0]) / p["scale"]) ** 2 - jnp.log(p["scale"]) - 0.01 * p["mean"][1] ** 2,
    num_data=12,
    support={"scale": sk.positive},
)


@pytest.mark.parametrize(
    ("target", "sampler", "data", "batch_size"),
    [
        pytest.param(TARGET, SAMPLER, None, None, marks=pytest.mark.thorough),
        (POSTERIOR, SAMPLER, DATA, 4),
        pytest.param(POSTERIOR, sk.sgld(1e-3), DATA, 4, marks=pytest.mark.thorough),
    ],
    ids=["svgd", "minibatches", "sgld"],
)
def test_steps_by_fold_in_are_those_of_fit(target, sampler, data, batch_size, key):
    algorithm = sk.as_blackjax(target, sampler, data, batch_size=batch_size)

    run = jax.jit(partial(jax.lax.scan, lambda state, t: algorithm.step(jr.fold_in(key, t), state)))
    state, infos = run(algorithm.init(start(0)), jnp.arange(6))
    result = sk.fit(key, target, sampler, start(0), data, num_steps=6, batch_size=batch_size)
    for name in ("mean", "scale"):
        np.testing.assert_allclose(state.position[name], result.particles[name], rtol=1e-10)
    np.testing.assert_allclose(infos.velocity_norm, result.history.velocity_norm, rtol=1e-10)


def test_blackjaxs_own_loop_runs_it(key):
    blackjax = pytest.importorskip("blackjax", reason="needs BlackJAX: pip install blackjax")
    algorithm = sk.as_blackjax(TARGET, SAMPLER)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state, _ = blackjax.util.run_inference_algorithm(key, algorithm, 200, initial_position=start(0))
    assert float(state.position["mean"].mean()) == pytest.approx(1.0, abs=0.1)


def test_init_and_step_can_be_traced():
    algorithm = sk.as_blackjax(TARGET, SAMPLER)
    state, info = jax.jit(lambda key, position: algorithm.step(key, algorithm.init(position)))(jr.key(0), start(0))
    assert state.position["mean"].shape == (5, 2)
    assert info.velocity_norm > 0
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), start(0), start(1))
    states = jax.jit(jax.vmap(algorithm.init))(stacked)  # two clouds at once
    states, _ = jax.jit(jax.vmap(algorithm.step))(jr.split(jr.key(0), 2), states)
    np.testing.assert_allclose(states.position["mean"][0], state.position["mean"], rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sk.as_blackjax(TARGET, "svgd"), "`sampler` must be a sampler"),
        (lambda: sk.as_blackjax(POSTERIOR, SAMPLER), "`data` is missing"),
        (
            lambda: sk.as_blackjax(TARGET, SAMPLER).init({"mean": jnp.zeros((5, 2)), "scale": jnp.ones(())}),
            "leading particle axis",
        ),
    ],
    ids=["sampler", "data", "position"],
)
def test_wrong_algorithms_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_package_says_that_it_is_typed():
    assert files("steinkern").joinpath("py.typed").is_file()
