"""Distances in a metric against their definition, for few coordinates and for many."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.particles import Scored
from steinkern.kernels.in_metric import distances_in_metric, distances_within_metric, in_metric
from steinkern.kernels.reference import stein_velocity
from steinkern.linalg import metrics as module
from steinkern.linalg.metrics import DiagonalMetric, apply_to_shared, left_factors_first, sum_of_solved
from tests.helpers.cases import random_positive_definite


def _metric(key, d, form):
    if form == "dense":
        return sk.linalg.DenseMetric.of(random_positive_definite(key, d))
    left, right = (
        sk.linalg.Dense(random_positive_definite(own, size))
        for own, size in zip(jr.split(key), (2, d // 2), strict=True)
    )
    return sk.linalg.Kronecker(left, right).factorize(1e-3)


def _by_definition(metric, at, points):
    matrix = np.asarray(metric.multiply(jnp.eye(metric.size)))
    offsets = np.asarray(at)[:, None] - np.asarray(points)[None]
    return np.einsum("mni,ij,mnj->mn", offsets, matrix, offsets)


@pytest.mark.parametrize("form", ["dense", "kronecker"])
@pytest.mark.parametrize("d", [2, 4, 6])  # by differences up to four coordinates, by products of matrices above
def test_distances_in_a_metric_match_their_definition(key, d, form):
    metric_key, at_key, points_key = jr.split(key, 3)
    metric = _metric(metric_key, d, form)
    at, points = jr.normal(at_key, (3, d)), jr.normal(points_key, (5, d))
    there = in_metric(metric.for_arranged(), metric.arrange(points))
    across = distances_in_metric(in_metric(metric.for_arranged(), metric.arrange(at)), there)
    np.testing.assert_allclose(across, _by_definition(metric, at, points), rtol=1e-10, atol=1e-12)
    within = distances_within_metric(there)
    np.testing.assert_allclose(within, _by_definition(metric, points, points), rtol=1e-10, atol=1e-12)
    assert not np.diagonal(within).any()


@pytest.mark.parametrize("d", [2, 6])
def test_coinciding_points_have_distance_zero_and_none_is_negative(key, d):
    """Also far from the origin and where the metric is badly conditioned."""
    metric = DiagonalMetric(jnp.logspace(-3, 3, d))
    points = 1e3 + jnp.repeat(jr.normal(key, (4, d)), 2, axis=0)
    r2 = distances_within_metric(in_metric(metric, points - jnp.mean(points, axis=0, keepdims=True)))
    assert (np.asarray(r2) >= 0).all()
    assert not np.asarray(r2)[[0, 2, 4, 6], [1, 3, 5, 7]].any()


@pytest.mark.parametrize("d", [2, 6])
def test_a_nan_stays_in_the_distances_of_its_point(key, d):
    metric = DiagonalMetric(jnp.ones(d))
    r2 = np.asarray(distances_within_metric(in_metric(metric, jr.normal(key, (4, d)).at[1, 0].set(jnp.nan))))
    assert np.isnan(r2[1]).all()
    assert np.isfinite(np.delete(np.delete(r2, 1, 0), 1, 1)).all()


def _kronecker_metrics(key, number, sides):
    keys = [jr.split(own, number) for own in jr.split(key, len(sides))]
    factors = [
        jnp.stack([random_positive_definite(own, side) for own in each]) for each, side in zip(keys, sides, strict=True)
    ]
    return jax.vmap(
        lambda left, right: sk.linalg.Kronecker(sk.linalg.Dense(left), sk.linalg.Dense(right)).factorize(0.1)
    )(*factors)


@pytest.mark.parametrize("name", ["solve", "multiply"])
def test_left_factors_first_gives_the_same_products(key, name):
    metric_key, points_key = jr.split(key)
    metrics, points = _kronecker_metrics(metric_key, 3, (2, 4)), jr.normal(points_key, (5, 8))
    expected = jax.vmap(lambda metric: getattr(metric, name)(points))(metrics)
    np.testing.assert_allclose(left_factors_first(metrics, name, points), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(apply_to_shared(metrics, name, points), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("together", [1, 2, 3, 6])
def test_groups_of_metrics_give_what_all_at_once_give(key, together, monkeypatch):
    """Six metrics in groups of 1, 2, 3 and 6, by the most entries that vectors may have after them."""
    metric_key, points_key, pairs_key = jr.split(key, 3)
    metrics, points = _kronecker_metrics(metric_key, 6, (2, 4)), jr.normal(points_key, (5, 8))
    monkeypatch.setattr(module, "_MAX_ENTRIES", together * points.size)
    each = jnp.stack([jax.tree.map(lambda leaf, i=i: leaf[i], metrics).solve(points) for i in range(6)])
    np.testing.assert_allclose(apply_to_shared(metrics, "solve", points), each, rtol=1e-9, atol=1e-12)
    pairs = jr.normal(pairs_key, (6, 4, 5))
    expected = jnp.einsum("lij,ljd->id", pairs, each)
    np.testing.assert_allclose(sum_of_solved(metrics, pairs, points), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("weighting", ["exact", "no_determinant", "euclidean"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_velocity_of_a_mixture_in_more_coordinates_than_particles_is_its_definition(key, weighting, elsewhere):
    metric_key, points_key, scores_key, at_key = jr.split(key, 4)
    points = jr.normal(points_key, (3, 8))
    metrics = _kronecker_metrics(metric_key, 3, (2, 4))
    anchors = points if not elsewhere else points + 0.3
    kernel = sk.kernels.Mixture.of(sk.kernels.Isotropic(sk.RBF()), metrics, anchors, points, sk.Median(), weighting)
    source = Scored.uniform(points, jr.normal(scores_key, points.shape))
    at = jr.normal(at_key, (2, 8)) if elsewhere else points
    np.testing.assert_allclose(kernel.velocity(at, source), stein_velocity(kernel, at, source), rtol=1e-8, atol=1e-10)
