"""`sample`, rule by rule: the nearest Gaussian, chains, control variates, mixing and placing."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.diagnostics import distance_along_directions, measure_mixing
from steinkern.inference.judge import MAX_DRIFT
from steinkern.inference.sample.chains import ROUND, _have_converged, estimate_metric, one_round
from steinkern.inference.sample.control_variates import moments_by_stein
from steinkern.inference.sample.evaluation import Evaluator
from steinkern.inference.sample.gaussian import first_precisions, nearest_gaussian
from steinkern.inference.sample.randomness import even_noise, transition_noise
from steinkern.inference.sample.thinning import thin
from steinkern.inference.sample.whitening import Whitening
from steinkern.linalg.metrics import DenseMetric, DiagonalMetric

pytestmark = pytest.mark.thorough

MEAN, SDS = np.array([3.0, -200.0]), np.array([1e-3, 50.0])


def badly_scaled(x):
    return -0.5 * jnp.sum(((x - MEAN) / SDS) ** 2)


def bound(function, d=2):
    return sk.LogDensity(function).bind(jnp.zeros(d))


def nearest(target, start, noise):
    evaluator = Evaluator(target, jnp.asarray(start), noise, None)
    _, curvature = evaluator.derivatives(np.broadcast_to(start, noise.shape))
    return nearest_gaussian(evaluator, np.asarray(start), first_precisions(curvature))[0]


def test_the_nearest_gaussian_of_a_gaussian_is_itself():
    noise = even_noise(np.random.default_rng(0), 100, 2)
    found = nearest(bound(badly_scaled), np.zeros(2), noise)
    assert found.settled
    np.testing.assert_allclose(found.mean, MEAN, rtol=1e-6)
    np.testing.assert_allclose(found.precision, np.diag(SDS**-2.0), rtol=1e-6, atol=1e-6)


def test_the_nearest_gaussian_satisfies_steins_identities_over_its_own_cloud():
    def skewed(x):
        return jnp.sum(3 * x - jnp.exp(x)) - 0.1 * x[0] * x[1]

    target, noise = bound(skewed), even_noise(np.random.default_rng(0), 100, 2)
    found = nearest(target, np.array([5.0, -5.0]), noise)
    points = jnp.asarray(found.cloud(noise))
    scores = target.scores(points)
    sds = np.sqrt(np.diagonal(np.linalg.inv(found.precision)))
    np.testing.assert_allclose(jnp.mean(scores, axis=0) * sds, 0, atol=0.05)  # settled to a hundredth of a nat
    curvature = -jnp.mean(jax.vmap(jax.hessian(skewed))(points), axis=0)
    np.testing.assert_allclose(
        curvature * np.outer(sds, sds), found.precision * np.outer(sds, sds), atol=0.1
    )  # likewise


def test_many_dimensions_take_the_diagonal_alone():
    d = 201
    scales = jnp.linspace(0.5, 2, d)
    target = bound(lambda x: -0.5 * jnp.sum((x / scales) ** 2), d)
    found = nearest(target, np.ones(d), even_noise(np.random.default_rng(0), 100, d))
    assert found.precision.shape == (d,)
    np.testing.assert_allclose(found.precision, scales**-2, rtol=1e-6)


def test_even_noise_has_exact_moments_and_in_too_many_dimensions_no_direction_twice():
    noise = even_noise(np.random.default_rng(0), 50, 3)
    np.testing.assert_allclose(noise.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(noise.T @ noise / 50, np.eye(3), atol=1e-12)
    values = np.linalg.eigvalsh(np.cov(even_noise(np.random.default_rng(0), 10, 20).T, ddof=0))
    np.testing.assert_allclose(sorted(values)[-9:], 1, atol=1e-10)
    np.testing.assert_allclose(sorted(values)[:-9], 0, atol=1e-10)


@pytest.fixture(scope="module")
def chains():
    """Chains on a skewed target of two dimensions whose moments are known: log of Gamma(3, 1) in each."""

    def log_density(x):
        return jnp.sum(3 * x - jnp.exp(x))

    target = bound(log_density)
    sampler = sk.samplers.Hamiltonian(DenseMetric.of(jnp.diag(jnp.full(2, 2.5))), jnp.asarray(0.2))
    state = sampler.init(target, jr.normal(jr.key(0), (100, 2)))
    random = np.random.default_rng(1)
    noise = [transition_noise(random, sampler, ROUND, 100, 2, jnp.float64) for _ in range(2)]
    state, step, draws, _ = one_round(noise[0], target, sampler, state, None, jnp.ones(()))
    whitening = estimate_metric(np.asarray(draws.points), np.diag([2.5, 2.5]))
    metric = whitening.metric()
    _, after, draws, _ = one_round(noise[1], target, sk.samplers.Hamiltonian(metric, step), state, None, jnp.zeros(()))
    assert float(after) == pytest.approx(float(step))  # a rate of 0 leaves it
    return jax.tree.map(np.asarray, draws), metric, step, whitening


DIGAMMA_3, TRIGAMMA_3 = 0.9227843350984671, 0.3949340668482264


def test_chains_have_the_moments_of_the_target_and_a_step_size_for_it(chains):
    draws, metric, step, _ = chains
    assert 0.3 < float(step) < 2
    assert 0.65 < float(draws.acceptance.mean()) < 0.95
    points = np.asarray(draws.points).reshape(-1, 2)
    # Standard errors of 5,000 draws that are worth a half: 0.013 in the mean, 0.04 of the variance; four of them.
    np.testing.assert_allclose(points.mean(0), DIGAMMA_3, atol=0.05)
    np.testing.assert_allclose(points.var(0), TRIGAMMA_3, rtol=0.15)
    np.testing.assert_allclose(
        metric.multiply(jnp.array([1.0, 0.0]))[0], 1 / TRIGAMMA_3, rtol=0.2
    )  # half as many draws


def test_steins_identity_takes_noise_out_of_moments(chains):
    draws, metric, _, whitening = chains
    found = moments_by_stein(draws.points, draws.scores, whitening)
    plain = np.std(np.asarray(draws.points).mean(0), axis=0, ddof=1) / 10
    assert (np.asarray(found.mean_error) < 0.7 * plain).all()
    mean = found.center + metric.unwhiten(jnp.asarray(found.mean))
    assert (np.abs(mean - DIGAMMA_3) < 5 * found.mean_error).all()
    root = np.asarray(metric.inverse_root)
    np.testing.assert_allclose(
        np.diagonal(root @ found.covariance @ root.T), TRIGAMMA_3, rtol=0.1
    )  # as above, less noise
    assert float(found.identity_error) < 5


def test_steins_identity_makes_moments_of_a_gaussian_exact_and_narrow_directions_too():
    root = np.array([[2.0, 0.0, 0.0], [1.5, 0.5, 0.0], [3.5, 0.5, 1e-4]])  # the last is the sum of the others, nearly
    points = np.asarray(jr.normal(jr.key(0), (20, 30, 3))) @ root.T + 5
    precision = np.linalg.inv(root @ root.T)
    precision = (precision + precision.T) / 2
    whitening = Whitening.of_precision(precision)
    found = moments_by_stein(points, -(points - 5) @ precision, whitening)
    np.testing.assert_allclose(found.center + whitening.unwhiten(found.mean), 5, atol=1e-5)
    np.testing.assert_allclose(found.covariance, np.eye(3), atol=1e-5)


def test_a_correction_that_is_no_noise_is_refused_and_an_edge_is_seen():
    points = np.abs(np.asarray(jr.normal(jr.key(0), (50, 100, 1))))  # half of a Gaussian: E[s] is not 0
    found = moments_by_stein(points, -points, Whitening.of_precision(np.ones((1, 1))))
    # Four standard errors of 5,000 draws: 0.03 in the mean, 0.03 in the variance.
    np.testing.assert_allclose(found.center + found.mean, (2 / np.pi) ** 0.5, atol=0.03)
    np.testing.assert_allclose(found.covariance, 1 - 2 / np.pi, atol=0.03)
    assert float(found.identity_error) > 20


def test_a_jump_leaves_the_target_as_it_is():
    target = bound(lambda x: jnp.sum(3 * x - jnp.exp(x)))
    exact = jnp.log(jr.gamma(jr.key(0), 3.0, (4000, 2)))
    sampler = sk.samplers.Hamiltonian(
        DiagonalMetric(jnp.sqrt(jnp.full(2, 2.5))), 1e-6, 1
    )  # so short that jumps alone move the chains
    state = sampler.init(target, exact)
    for turn in range(5):
        state, _ = eqx.filter_jit(sampler.step)(jr.key(turn), state, target)
    moved = np.mean(np.any(np.abs(state.points - exact) > 1e-3, axis=1))
    assert moved > 0.3
    points = np.asarray(state.points)  # 4,000 draws: five standard errors of the mean, three of the variance
    np.testing.assert_allclose(points.mean(0), DIGAMMA_3, atol=0.05)
    np.testing.assert_allclose(points.var(0), TRIGAMMA_3, rtol=0.1)


def test_chains_that_have_converged_are_told_from_those_that_drift_or_stay_apart():
    still = jr.normal(jr.key(0), (200, 100, 2))
    found = measure_mixing(np.asarray(still))
    assert _have_converged(found)
    np.testing.assert_allclose(found.mean_errors, 1 / np.sqrt(20_000), rtol=0.4)  # from 100 chains: 7 percent
    np.testing.assert_allclose(found.r_hat, 1, atol=0.01)  # √(1 + 1/200), and noise
    moving = still + jnp.linspace(0, 1, 200)[:, None, None] * jnp.array([0.0, 1.0])[None, None]
    assert measure_mixing(np.asarray(moving)).drift > MAX_DRIFT
    apart = still + 5.0 * jnp.asarray(np.arange(100) % 2, float)[None, :, None]
    assert not _have_converged(measure_mixing(np.asarray(apart)))
    assert measure_mixing(np.asarray(apart)).r_hat.min() > 2


def test_errors_of_the_width_of_a_funnel_are_as_stated_within_the_budget():
    """Its standard deviation is 3. With half the step size instead of many they were 2.2 times as large as stated."""

    def funnel(x):
        return -(x[0] ** 2) / 18 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 4.5 * x[0]

    ratios = []
    for seed in range(12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sk.SteinWarning)
            result = sk.sample(jr.key(seed), funnel, np.zeros(10))
        assert result.message.code == "budget"
        assert not any(notice.code == "modes-apart" for notice in result.warnings)
        for part in ("as steep where 'x[0]' is low: a funnel", "Raise `max_gradients`"):
            assert any(part in notice.text for notice in result.warnings)
        assert 1_000_000 <= result.diagnostics.cost.gradients < 1_500_000  # with the search, and the last round
        ratios.append((result.points[:, 0].std() / 3 - 1) / result.diagnostics.sd_errors[0])
    assert np.sqrt(np.mean(np.square(ratios))) < 1.8


def test_a_budget_ends_the_chains_after_the_round_that_uses_it_up():
    def t5(x):  # which takes at least 300 transitions, because of its tails
        return -3 * jnp.sum(jnp.log1p(x**2 / 5))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.SteinWarning)
        steps = [sk.sample(jr.key(seed), t5, np.zeros(5)).num_steps for seed in range(3)]
        result = sk.sample(jr.key(0), t5, np.zeros(5), max_gradients=1)
    assert min(steps) >= 300
    assert result.num_steps == 150  # two rounds of warm-up, and one whose draws are returned
    assert result.status is sk.Status.FINISHED
    assert result.message.code == "budget"
    assert result.settings["max_gradients"] == 1
    with pytest.raises(ValueError, match="`max_gradients` must"):
        sk.sample(jr.key(0), t5, np.zeros(5), max_gradients=0)


def standardized(draws):
    return (draws - draws.mean(axis=0)) / draws.std(axis=0)


@pytest.mark.parametrize("num_particles", [20, 100, 1000])
def test_particles_are_different_draws_with_nearly_the_moments_of_all(num_particles):
    root = np.tril(np.full((20, 20), 0.2)) + np.eye(20)
    for seed in range(3):
        random = np.random.default_rng(seed)
        draws = random.standard_normal((5000, 20)) @ root.T
        rows = thin(random, draws @ np.linalg.inv(root).T, standardized(draws), num_particles)
        assert len(np.unique(rows)) == num_particles
        chosen = standardized(draws)[rows]
        # As many independent draws have errors of 1/√n, and at worst over twenty coordinates twice to three times that.
        assert np.abs(chosen.mean(axis=0)).max() < 1 / num_particles**0.5
        assert np.abs(chosen.std(axis=0) - 1).max() < 0.7 / num_particles**0.5


def test_particles_are_nearer_to_the_draws_than_a_random_choice_is():
    random = np.random.default_rng(0)
    draws = random.standard_normal((3000, 2))
    rows = thin(random, draws, standardized(draws), 100)
    ours, theirs = (distance_along_directions(np.random.default_rng(2), x, draws) for x in (draws[rows], draws[:100]))
    assert ours < 0.6 * theirs


@pytest.mark.parametrize("num_particles", [20, 100, 1000])
def test_a_product_that_is_known_well_has_its_standard_deviation_though_its_factors_are_not_known(num_particles):
    for seed in range(3):
        random = np.random.default_rng(seed)
        log_scale, product = random.standard_normal((5000, 10)), 1 + 0.1 * random.standard_normal((5000, 10))
        draws = np.concatenate([log_scale, product / np.exp(log_scale)], axis=1)
        whitening = Whitening.of_precision(np.linalg.inv(np.cov(draws.T)))
        chosen = draws[thin(random, whitening.whiten(draws), standardized(draws), num_particles)]
        products = np.exp(chosen[:, :10]) * chosen[:, 10:]
        # Within five standard errors of as many draws; an average of two draws is off by several standard deviations.
        np.testing.assert_allclose(products.std(axis=0), 0.1, rtol=5 / (2 * num_particles) ** 0.5)


def test_more_particles_than_candidates_are_random_draws():
    random = np.random.default_rng(0)
    draws = random.standard_normal((5000, 2))
    rows = thin(random, draws, standardized(draws), 3000)
    assert len(np.unique(rows)) == 3000
    few = draws[:50]
    assert set(thin(random, few, standardized(few), 500)) == set(range(50))


def test_one_particle_is_a_draw_in_the_middle():
    random = np.random.default_rng(0)
    draws = random.standard_normal((500, 2))
    (row,) = thin(random, draws, standardized(draws), 1)
    assert np.linalg.norm(draws[row]) < 1.5  # E‖x‖² is 2, and the energy distance prefers the median
