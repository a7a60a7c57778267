"""Langevin chains: one step by hand, and the laws that many independent chains reach."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.samplers.langevin import LangevinState
from tests.helpers.oracles import assert_close

NUM_DATA, D = 40, 2


def log_prior(x):
    return -0.5 * jnp.sum(x**2)


def log_likelihood(x, y):
    return -jnp.sum(jnp.log(jnp.cosh(y - x)))


def state_of(sampler, points, steps, second_moment):
    """Chains at `points` after some steps; SGLD keeps no second moment of its gradients."""
    shared = points, jnp.asarray(steps, jnp.int32)
    return LangevinState(*shared) if isinstance(sampler, sk.samplers.SGLD) else LangevinState(*shared, second_moment)


@eqx.filter_jit
def stepped(key, sampler, points, second_moment, batch):
    """The state and the report after the eighth step of chains on the posterior."""
    target = sk.Posterior(log_prior, log_likelihood, NUM_DATA).bind(points[0])
    return sampler.step(key, state_of(sampler, points, 7, second_moment), target, batch)


def drift_and_noise(key, make, points, second_moment, batch):
    """A and B of the move εA + √ε B, from two moves with the same key."""
    short, long = (
        stepped(key, make(jnp.asarray(size)), points, second_moment, batch)[0].points - points for size in (0.01, 0.04)
    )
    return (long - 2 * short) / 0.02, (4 * short - long) / 0.2


@pytest.fixture
def problem(key):
    """Three chains, the running second moments of their gradients, and a minibatch of 5 of the 40 examples."""
    points_key, moment_key, batch_key = jr.split(key, 3)
    return jr.normal(points_key, (3, D)), jr.uniform(moment_key, (3, D)), 1 + jr.normal(batch_key, (5, D))


def by_hand(point, second_moment, batch):
    """Score and preconditioner of Li et al. (2016), α = 0.9 and λ = 0.1: V from the mean gradient of an example."""
    mean_gradient = jnp.mean(jnp.tanh(batch - point[None, :]), axis=0)
    second_moment = 0.9 * second_moment + 0.1 * mean_gradient**2
    return -point + NUM_DATA * mean_gradient, 1 / (0.1 + jnp.sqrt(second_moment))


PSGLD = partial(sk.samplers.PSGLD, decay=0.9, epsilon=0.1)


def test_a_step_of_sgld_is_the_full_data_score_and_noise_of_variance_two(problem, key):
    drift, noise = drift_and_noise(key, sk.samplers.SGLD, *problem)
    score, _ = jax.vmap(by_hand, (0, 0, None))(*problem)
    assert_close(drift, score)
    assert_close(noise, jnp.sqrt(2.0) * jr.normal(key, noise.shape))


def test_psgld_preconditions_the_full_data_score_by_the_mean_gradient_of_an_example(problem, key):
    drift, noise = drift_and_noise(key, PSGLD, *problem)
    score, preconditioner = jax.vmap(by_hand, (0, 0, None))(*problem)
    assert_close(drift, preconditioner * score)
    assert_close(noise, jnp.sqrt(2 * preconditioner) * jr.normal(key, noise.shape))


def test_the_correction_of_psgld_is_the_divergence_of_its_preconditioner(problem, key):
    def divergence(point, second_moment, batch):
        return jnp.diagonal(jax.jacfwd(lambda x: by_hand(x, second_moment, batch)[1])(point))

    with_it, _ = drift_and_noise(key, partial(PSGLD, correction=True), *problem)
    without, _ = drift_and_noise(key, PSGLD, *problem)
    # A difference of numbers that are a hundred times larger loses two digits.
    expected = jax.vmap(divergence, (0, 0, None))(*problem)
    np.testing.assert_allclose(with_it - without, expected, rtol=1e-8, atol=1e-10, equal_nan=False)


def test_a_schedule_is_read_at_the_number_of_steps_taken(problem, key):
    moved, info = stepped(key, sk.psgld(lambda count: 0.1 / (1 + count.astype(float))), *problem)
    expected, _ = stepped(key, sk.psgld(0.1 / 8), *problem)
    assert_close(moved.points, expected.points)
    assert_close(info.step_size, 0.1 / 8)
    assert moved.steps == 8


@pytest.mark.parametrize("make", [sk.samplers.SGLD, PSGLD], ids=["sgld", "psgld"])
def test_chains_do_not_see_each_other(make, problem, key):
    points, second_moment, batch = problem
    sampler = make(jnp.asarray(0.01))
    moved = stepped(key, sampler, points, second_moment, batch)[0].points
    after = stepped(key, sampler, points.at[1].set(5.0), second_moment.at[1].set(3.0), batch)[0].points
    np.testing.assert_allclose(moved[0::2], after[0::2], rtol=1e-14)
    assert jnp.all(moved[1] != after[1])


VARIANCES = jnp.array([1.0, 4.0])


def gaussian(x):
    return -0.5 * jnp.sum(x**2 / VARIANCES[: x.shape[0]])


@eqx.filter_jit
def run(key, sampler, points, second_moment, num_steps):
    """The state of chains on a Gaussian, after a first step, when they have taken `num_steps` more."""
    target = sk.LogDensity(gaussian).bind(points[0])

    def move(step, state):
        return sampler.step(jr.fold_in(key, step), state, target)[0]

    return jax.lax.fori_loop(0, num_steps, move, state_of(sampler, points, 1, second_moment))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sampler", "sizes"),
    [
        pytest.param(sk.sgld(0.5), jnp.array([0.5, 0.5]), id="sgld"),
        # Frozen at V = (9, 0.16) with λ = 1, so that G = 1/(λ + √V) = (1/4, 1/1.4).
        pytest.param(sk.psgld(1.2, epsilon=1.0, freeze_after=1), jnp.array([0.3, 1.2 / 1.4]), id="frozen psgld"),
    ],
)
def test_chains_on_a_gaussian_reach_the_variance_of_the_discretised_chain(sampler, sizes, key):
    # On N(0, σ²) a step is x' = (1 − η/σ²) x + √(2η) ξ with η = εG, so v = (1 − η/σ²)² v + 2η at rest, which gives
    # v = σ² / (1 − η/2σ²). From 0 it is reached to within (1 − η/σ²)^(2 × 200) < 1e-12.
    n = 20_000
    second_moment = jnp.broadcast_to(jnp.array([9.0, 0.16]), (n, 2))
    points = run(key, sampler, jnp.zeros((n, 2)), second_moment, 200).points
    expected = VARIANCES / (1 - sizes / (2 * VARIANCES))
    # Each chain is exactly normal: Σx²/(nv) has mean 1 and variance 2/n, x̄ has variance v/n, as for independent draws.
    assert jnp.all(jnp.abs(jnp.mean(points**2, axis=0) / expected - 1) < 4 * np.sqrt(2 / n))
    assert jnp.all(jnp.abs(jnp.mean(points, axis=0)) < 4 * jnp.sqrt(expected / n))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("correction", "variance"),
    [(False, (1 + 2 * np.sqrt(2 / np.pi)) / (1 + np.sqrt(2 / np.pi))), (True, 1.0)],
    ids=["without correction", "with correction"],
)
def test_adaptive_psgld_has_law_p_over_g_unless_corrected(correction, variance, key):
    # With α = 0 and λ = 1 on N(0, 1), G = 1/(1 + |x|). Without Γ the law p/G ∝ (1 + |x|) exp(−x²/2) has variance
    # (E x² + E|x|³) / (1 + E|x|) = (1 + 2√(2/π)) / (1 + √(2/π)) ≈ 1.4438 under N(0, 1); with Γ it is N(0, 1).
    n, size = 20_000, 0.02
    sampler = sk.psgld(size, decay=0.0, epsilon=1.0, correction=correction)
    squares = run(key, sampler, jnp.zeros((n, 1)), jnp.zeros((n, 1)), 1000).points ** 2
    # As in the closed form above, a finite step adds a term of order ε; 2ε leaves room for its constant.
    assert jnp.abs(jnp.mean(squares) - variance) < 4 * jnp.std(squares) / np.sqrt(n) + 2 * size


def test_a_frozen_preconditioner_adapts_first_and_then_stays(key):
    sampler = sk.psgld(0.1, decay=0.5, freeze_after=3)
    points = jr.normal(key, (4, 2))
    moments = [run(key, sampler, points, points**2, jnp.asarray(steps)).second_moment for steps in (1, 2, 9)]
    assert jnp.all(moments[0] != moments[1])
    np.testing.assert_array_equal(moments[1], moments[2])
