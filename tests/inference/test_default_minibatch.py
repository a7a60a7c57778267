"""`fit` without a sampler on minibatches: chains held aside on a sample of the rows, and what follows from them."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.automatic.chains import Draws
from steinkern.inference.automatic.convergence import measure_mixing
from steinkern.inference.default.held_aside import HeldAside, compare
from steinkern.inference.default.minibatch import RowSample, differs_from_all_rows, on_all_rows
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


def row_sample_with(bend, number):
    """The posterior centred at the rows' mean, and some of the rows."""
    rows = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    target = sk.Posterior(lambda x: -0.5 * jnp.sum(x**2), lambda x, row: bent(x, row, bend), ROWS)
    centre = jnp.array([rows.mean(), 0.0])
    gradient, hessian = jnp.zeros(2), jnp.diag(jnp.array([-float(ROWS), 0.0]))  # exact at the second coordinate's 0
    return target, rows, RowSample(centre_posterior(target, centre, gradient, hessian), rows[:number])


def particles_of_a_gaussian(scale):
    x = np.random.default_rng(1).standard_normal((100, 2))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return x * scale


@pytest.mark.parametrize(("bend", "number", "told"), [(0.0, 50, False), (0.3, 50, True), (0.3, ROWS, False)])
def test_a_sample_of_rows_is_refused_where_its_log_density_is_another(bend, number, told):
    points = particles_of_a_gaussian(np.array([ROWS**-0.5, 1.0])).astype(np.float32)
    _, rows, sample = row_sample_with(bend, number)
    found = differs_from_all_rows(sample.target.bind(np.zeros(2, np.float32)), points, sample.rows, rows)
    assert (found is not None) == told
    if found is not None:
        assert found.code == "not-compared"
        assert "on 50 rows the log density differs by" in str(found)


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
    values, scores = on_all_rows(bound, points, data)
    in_jax = jnp.asarray(points)
    np.testing.assert_allclose(values, bound.log_densities(in_jax, data), rtol=1e-5)
    np.testing.assert_allclose(scores, bound.scores(in_jax, data), rtol=1e-3, atol=1e-2)  # sums of 2000 float32

    def total(vector):
        return jnp.sum(bound.log_examples(vector, data))

    centred = centre_posterior(bound, start, jax.grad(total)(start), jax.hessian(total)(start))
    common = np.flatnonzero(data["x"][:, 2] == 0)[:40]
    without = jax.tree.map(lambda leaf: leaf[common], data)
    assert differs_from_all_rows(centred, points, without, data).code == "not-compared"
    assert differs_from_all_rows(centred, points, data, data) is None


def fitted(target, rows, points):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.SteinWarning)
        return sk.fit(
            jr.key(0), target, sk.svgd(optimiser=1e-7), jnp.asarray(points, jnp.float32), rows,
            num_steps=1, batch_size=ROWS // 4, progress=False,
        )  # fmt: skip


def test_particles_are_moved_to_the_moments_of_chains_that_the_target_confirms():
    target, rows, _ = row_sample_with(0.0, 50)
    sd = np.array([(ROWS + 1) ** -0.5, 1.0])
    mean = np.array([rows.sum() / (ROWS + 1), 0.0])
    result = fitted(target, rows, mean + particles_of_a_gaussian(1.15 * sd))
    draws = mean + sd * np.random.default_rng(2).standard_normal((50, 100, 2))
    held = held_at(draws)
    calm = replace(result, warnings=(), verdict=replace(result.verdict, passed=True))
    before = compare(np.asarray(result.points, np.float64), held)
    assert worth_rescaling(calm, before)
    assert not worth_rescaling(replace(calm, verdict=replace(result.verdict, passed=False)), before)
    moved = rescale(result, held, rows)
    points, seen = np.asarray(moved.points, np.float64), draws.reshape(-1, 2)
    # The particles are float32, and their mean is up to 0.4 standard deviations from 0.
    np.testing.assert_allclose((points.mean(axis=0) - seen.mean(axis=0)) / sd, 0, atol=1e-4)
    np.testing.assert_allclose(points.std(axis=0), seen.std(axis=0), rtol=1e-4)
    assert moved.verdict.passed
    assert moved.loop is None
    np.testing.assert_allclose(moved.particles, moved.points)
    assert not worth_rescaling(calm, compare(points, held))


@pytest.mark.parametrize("wrong", ["shifted", "wide", "narrow", "not finite"])
def test_particles_stay_where_the_target_does_not_confirm_the_chains(wrong):
    target, rows, _ = row_sample_with(0.0, 50)
    sd = np.array([(ROWS + 1) ** -0.5, 1.0])
    mean = np.array([rows.sum() / (ROWS + 1), 0.0])
    result = fitted(target, rows, mean + particles_of_a_gaussian(sd))
    draws = mean + sd * np.random.default_rng(2).standard_normal((50, 100, 2))
    draws = {
        "shifted": draws + 0.4 * sd, "wide": mean + 1.25 * (draws - mean), "narrow": mean + 0.8 * (draws - mean),
        "not finite": np.where(draws > 0, draws, np.nan),
    }[wrong]  # fmt: skip
    assert rescale(result, held_at(draws), rows) is result


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
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_particles_are_not_compared_with_chains_that_miss_rare_rows():
    """Chains on 42 rows know nothing of 20 in 10,000, and would move right particles by a third of their spread."""
    target, data = logistic_with_a_rare_column(10_000, 20)
    result = sk.fit(
        jr.key(1), target, data=data, start=jnp.zeros(3), batch_size=256, num_particles=20, progress=False
    )  # fmt: skip
    assert "not-compared" in [notice.code for notice in result.warnings]
    assert result.comparison is None
    assert result.status is sk.Status.FINISHED
    assert result.points.shape == (20, 3)
    assert "support points" in result.verdict.note


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_a_run_with_minibatches_goes_on_with_all_particles_of_the_flow():
    target, data = logistic_with_a_rare_column(1_000, 500)
    options = {"data": data, "batch_size": 100, "progress": False}
    first = sk.fit(jr.key(0), target, start=jnp.zeros(3), num_particles=20, num_steps=20, **options)
    rest = sk.fit(jr.key(0), target, particles=first, num_steps=10, **options)
    assert rest.num_steps == 30
    assert rest.points.shape == (20, 3)
    assert rest.loop is None or len(rest.loop.state.points) == 100
    steps = first.settings["cost"]["gradients"] - rest.settings["cost"]["gradients"]
    assert steps > 0  # of which the second run took fewer
