"""`fit` without a sampler on minibatches: chains held aside on a sample of the rows, and what follows from them."""

import warnings

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.automatic.chains import Draws
from steinkern.inference.automatic.convergence import measure_mixing
from steinkern.inference.default.held_aside import HeldAside, compare
from steinkern.inference.default.minibatch import Sampled, too_noisy
from steinkern.inference.default.refine import _joined
from steinkern.inference.default.rescale import rescale, worth_rescaling
from steinkern.results.outcome import History
from steinkern.targets.centred import centre_posterior

ROWS = 400


def held_at(points):
    """Chains that were at these points, axes (transition, chain, coordinate)."""
    t, n, _ = points.shape
    ones = np.ones((t, n))
    draws = Draws(points, ones, -points, ones, np.ones(t, int), np.zeros(t, int), np.ones(t))
    return HeldAside(draws, measure_mixing(points), np.array([0, t * n, 0, t]))


def bent(x, row, bend):
    """Rows around the first coordinate; the second bends what is seen of it."""
    return -0.5 * (row - x[0] - bend * x[1] ** 3) ** 2


def sampled_with(bend, number):
    """The posterior centred at the rows' mean, and some of the rows."""
    rows = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    target = sk.Posterior(lambda x: -0.5 * jnp.sum(x**2), lambda x, row: bent(x, row, bend), ROWS)
    centre = jnp.array([rows.mean(), 0.0])
    gradient, hessian = jnp.zeros(2), jnp.diag(jnp.array([-float(ROWS), 0.0]))  # exact at the second coordinate's 0
    return target, rows, Sampled(centre_posterior(target, centre, gradient, hessian), rows[:number])


def particles_of_a_gaussian(scale):
    x = np.random.default_rng(1).standard_normal((100, 2))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return x * scale


def test_a_sample_of_rows_is_too_small_where_the_log_density_depends_on_which_they_are():
    points = particles_of_a_gaussian(np.array([ROWS**-0.5, 1.0])).astype(np.float32)
    for bend, noisy in ((0.0, False), (0.3, True)):
        _, _, sampled = sampled_with(bend, 50)
        found = too_noisy(sampled.target.bind(np.zeros(2, np.float32)), points, sampled.rows)
        assert (found is not None) == noisy
        if found is not None:
            assert found.code == "not-compared"
            assert "on 50 rows the log density is known to" in str(found)


def fitted(target, rows, points):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.SteinWarning)
        return sk.fit(
            jr.key(0), target, sk.svgd(optimiser=1e-7), jnp.asarray(points, jnp.float32), rows,
            num_steps=1, batch_size=ROWS // 4, progress=False,
        )  # fmt: skip


def test_particles_are_moved_to_the_moments_of_chains_that_the_target_confirms():
    target, rows, sampled = sampled_with(0.0, 50)
    sd = np.array([(ROWS + 1) ** -0.5, 1.0])
    mean = np.array([rows.sum() / (ROWS + 1), 0.0])
    result = fitted(target, rows, mean + particles_of_a_gaussian(1.15 * sd))
    draws = mean + sd * np.random.default_rng(2).standard_normal((50, 100, 2))
    held = held_at(draws)
    assert worth_rescaling(compare(np.asarray(result.points, np.float64), held))
    moved = rescale(result, held, sampled)
    points, seen = np.asarray(moved.points, np.float64), draws.reshape(-1, 2)
    np.testing.assert_allclose((points.mean(axis=0) - seen.mean(axis=0)) / sd, 0, atol=1e-4)
    np.testing.assert_allclose(points.std(axis=0), seen.std(axis=0), rtol=1e-4)
    assert moved.verdict.passed
    assert moved.verdict.note.startswith("On 50 rows")
    assert moved.loop is None
    np.testing.assert_allclose(moved.particles, moved.points)
    assert not worth_rescaling(compare(points, held))


@pytest.mark.parametrize("wrong", ["shifted", "wide", "not finite"])
def test_particles_stay_where_the_target_does_not_confirm_the_chains(wrong):
    target, rows, sampled = sampled_with(0.0, 50)
    sd = np.array([(ROWS + 1) ** -0.5, 1.0])
    result = fitted(target, rows, particles_of_a_gaussian(sd) + np.array([rows.sum() / (ROWS + 1), 0.0]))
    draws = sd * np.random.default_rng(2).standard_normal((50, 100, 2))
    draws = {"shifted": draws + 3 * sd, "wide": 3 * draws, "not finite": np.where(draws > 0, draws, np.nan)}[wrong]
    assert rescale(result, held_at(draws), sampled) is result


def test_records_of_a_refinement_come_after_those_of_the_run():
    def history(first, particles):
        steps = np.arange(first, first + 3)
        return History(steps, steps / 10, steps / 100, steps / 1000, particles)

    joined = _joined(history(1, None), history(4, None))
    np.testing.assert_array_equal(joined.step, [1, 2, 3, 4, 5, 6])
    assert joined.particles is None
    kept = {"x": np.zeros((3, 5))}
    assert _joined(history(1, kept), history(4, kept)).particles["x"].shape == (6, 5)


def hierarchical(rows, groups):
    """Observations of groups: mean and log spread of the groups, log noise, and the groups' own means."""
    random = np.random.default_rng(rows)
    group = random.integers(0, groups, rows).astype(np.int32)
    seen = (1 + 0.7 * random.standard_normal(groups))[group] + 1.5 * random.standard_normal(rows)

    def log_prior(x):
        own = x[3:]
        among = -0.5 * jnp.sum(((own - x[0]) * jnp.exp(-x[1])) ** 2) - groups * x[1]
        return among - 0.125 * jnp.sum(x[:3] ** 2)

    def log_likelihood(x, row):
        return -0.5 * ((row["y"].astype(x.dtype) - x[3:][row["group"]]) * jnp.exp(-x[2])) ** 2 - x[2]

    data = {"y": seen.astype(np.float32), "group": group}
    return sk.Posterior(log_prior, log_likelihood, rows), data, 3 + groups


@pytest.mark.thorough
def test_a_hierarchy_by_minibatches_has_the_spreads_of_all_rows():
    target, data, d = hierarchical(10_000, 20)
    result = sk.fit(jr.key(0), target, data=data, start=jnp.zeros(d), batch_size=256, progress=False)
    exact = sk.sample(jr.key(1), target, jnp.zeros(d), data=data, progress=False)
    points, sd = np.asarray(result.points, np.float64), exact.points.std(axis=0)
    # What is promised of minibatches. `sample` knows its means to 0.03 standard deviations, its spreads to 3 percent.
    np.testing.assert_allclose((points.mean(axis=0) - exact.points.mean(axis=0)) / sd, 0, atol=0.2)
    np.testing.assert_allclose(points.std(axis=0) / sd, 1, atol=0.15)
    assert result.comparison.chains == 100
    assert result.comparison.sd_errors.max() < 0.15
    assert not result.warnings
    assert result.settings["cost"]["epochs"] < 20


@pytest.mark.thorough
def test_a_posterior_that_a_sample_of_rows_does_not_show_is_not_compared():
    """Few rows, whose curvature changes within the mass: only Stein's identity is checked, and a notice says so."""
    random = np.random.default_rng(3)
    x = random.standard_normal((60, 2)).astype(np.float32)
    y = (random.random(60) < 1 / (1 + np.exp(-4 * x[:, 0]))).astype(np.float32)

    def log_likelihood(weights, row):
        logit = jnp.vdot(row["x"].astype(weights.dtype), weights)
        return row["y"].astype(weights.dtype) * logit - jnp.logaddexp(0, logit)

    target = sk.Posterior(lambda weights: -0.5 * jnp.sum((weights / 5) ** 2), log_likelihood, 60)
    with pytest.warns(sk.SteinWarning, match="were not compared with chains"):
        result = sk.fit(
            jr.key(0), target, data={"x": x, "y": y}, start=jnp.zeros(2), batch_size=10, num_particles=20,
            progress=False,
        )  # fmt: skip
    assert result.comparison is None
    assert result.points.shape == (20, 2)
    assert result.status is sk.Status.FINISHED
