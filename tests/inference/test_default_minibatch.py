"""`fit` without a sampler on minibatches: centering on all rows, and reference chains on a sample of them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.default import center_on_rows, log_densities_on_all_rows, sample_for_chains
from steinkern.inference.sample.gaussian import Gaussian
from steinkern.targets.centered import center_posterior


def logistic_with_a_rare_column(rows, rare):
    """A column that is 1 in a few rows, of which one is positive: what it does is not seen in a small sample."""
    random = np.random.default_rng(5)
    x = np.stack([np.ones(rows), random.standard_normal(rows), np.arange(rows) < rare], axis=1).astype(np.float32)
    y = (random.random(rows) < 1 / (1 + np.exp(-0.5 * x[:, 1]))).astype(np.float32)
    y[:rare] = np.arange(rare) == 0
    order = random.permutation(rows)

    def log_likelihood(weights, row):
        logit = jnp.vdot(row["x"].astype(weights.dtype), weights)
        return row["y"].astype(weights.dtype) * logit - jnp.logaddexp(0, logit)

    target = sk.Posterior(lambda weights: -0.5 * jnp.sum((weights / 3) ** 2), log_likelihood, rows)
    return target, {"x": x[order], "y": y[order]}


def test_rows_that_a_sample_does_not_have_are_missed():
    target, data = logistic_with_a_rare_column(2000, 20)
    bound = target.bind(np.zeros(3, np.float32))
    start = jnp.array([0.0, 0.5, -2.0])
    points = np.asarray(start[None] + 0.5 * jr.normal(jr.key(0), (30, 3)), np.float32)
    values = np.asarray(log_densities_on_all_rows(bound, points, data))
    exact = target.bind(np.zeros(3)).log_densities(jnp.asarray(points, np.float64), data)
    np.testing.assert_allclose(values - values[0], exact - exact[0], rtol=1e-5, atol=1e-4)

    def total(vector):
        return jnp.sum(bound.log_examples(vector, data))

    centered = center_posterior(target, start, jax.grad(total)(start), jax.hessian(total)(start))
    in_jax = jax.tree.map(jnp.asarray, data)
    _, problem = sample_for_chains(
        np.random.default_rng(0), sk.svgd(), centered.bind(np.zeros(3, np.float32)), points, in_jax
    )
    assert "the log density differs by" in problem


def test_a_posterior_is_centered_at_the_mode_on_all_rows():
    target, data = logistic_with_a_rare_column(2500, 200)  # blocks of 1,024 rows, and a rest
    bound, in_jax = target.bind(np.zeros(3, np.float32)), jax.tree.map(jnp.asarray, data)
    start = Gaussian(np.array([0.0, 0.0, -4.0]), 100 * np.eye(3), 0.0, 0, True, False, np.zeros(3))
    centered, nearest, passes = center_on_rows(bound, start, in_jax)
    mean = jnp.asarray(nearest.mean)

    def total(vector):
        return jnp.sum(target.bind(np.zeros(3)).log_examples(vector, in_jax))

    exact = np.asarray(jax.hessian(total)(mean), np.float64)
    np.testing.assert_allclose(centered.hessian, exact, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(nearest.precision, -exact + np.eye(3) / 9, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(centered.gradient, jax.grad(total)(mean), rtol=1e-2, atol=1e-2)
    slope = np.asarray(centered.gradient, np.float64) - nearest.mean / 9
    assert slope @ np.linalg.solve(nearest.precision, slope) < 3 * 0.1**2  # within 0.1 standard deviations of the mode
    assert 2 <= passes <= 5


def test_the_centered_log_density_of_many_rows_keeps_its_digits_in_single_precision():
    target, data = logistic_with_a_rare_column(3000, 20)
    center = np.array([0.0, 0.5, -2.0])
    points = center + 1e-2 * np.random.default_rng(0).standard_normal((20, 3))

    def total(vector):
        return jnp.sum(target.bind(center).log_examples(vector, data))

    derivatives = center, jax.grad(total)(center), jax.hessian(total)(center)
    found = {}
    for dtype in (np.float32, np.float64):
        centered = center_posterior(target, *(jnp.asarray(part, dtype) for part in derivatives))
        values = np.asarray(centered.bind(np.zeros(3, dtype)).log_densities(jnp.asarray(points, dtype), data))
        found[dtype] = values - values[0]
    # The log densities that are not centered are near -2000, with a spacing of 1e-4.
    np.testing.assert_allclose(found[np.float32], found[np.float64], rtol=1e-5, atol=2e-5)


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
    assert result.diagnostics.sd_errors.max() < 0.15
    assert not result.warnings
    assert result.diagnostics.cost.epochs < 20


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_particles_are_not_compared_with_chains_that_miss_rare_rows():
    """Chains on 42 rows know nothing of 20 in 10,000, and would move right particles by a third of their spread."""
    target, data = logistic_with_a_rare_column(10_000, 20)
    result = sk.fit(
        jr.key(1), target, data=data, start=jnp.zeros(3), batch_size=256, num_particles=20, progress=False
    )  # fmt: skip
    assert "not-compared" in [notice.code for notice in result.warnings]
    assert not len(result.diagnostics.r_hat)
    assert result.status is sk.Status.FINISHED
    assert result.points.shape == (20, 3)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_a_run_with_minibatches_goes_on_from_its_result():
    target, data = logistic_with_a_rare_column(1_000, 500)
    options = {"data": data, "batch_size": 100, "progress": False}
    first = sk.fit(jr.key(0), target, start=jnp.zeros(3), num_particles=20, num_steps=20, **options)
    rest = sk.fit(jr.key(0), target, particles=first, num_steps=10, **options)
    assert rest.num_steps == 30
    assert rest.points.shape == rest.loop.state.points.shape == (20, 3)
    steps = first.diagnostics.cost.gradients - rest.diagnostics.cost.gradients
    assert steps > 0  # of which the second run took fewer
