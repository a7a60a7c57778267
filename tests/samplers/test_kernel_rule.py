"""Kernel rules against explicit loops over steps and anchors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from tests.helpers.cases import random_positive_definite
from tests.helpers.oracles import median_bandwidth

PRECISION = random_positive_definite(jr.key(0), 2)
BASE = sk.kernels.Isotropic(sk.RBF(1.3))
ADAPTIVE = sk.kernels.Isotropic(sk.RBF())
DAMPING = 0.1
NUM_STEPS = 6
GIVEN = jnp.array([[0.5, -1.0], [2.0, 0.3]])


def log_density(x):
    """Its curvature is `PRECISION` + diag(x²): another one at every point."""
    return -0.5 * x @ PRECISION @ x - jnp.sum(x**4) / 12


def log_saddle(x):
    return 0.5 * x[0] ** 2 - 0.5 * x[1] ** 2 + jnp.sum(jnp.sin(3 * x)) + x[0] * x[1]


CONVEX = sk.LogDensity(log_density).bind(jnp.zeros(2))
SADDLE = sk.LogDensity(log_saddle).bind(jnp.zeros(2))
EXACT = sk.Hessian(repair=None)


def curvature_at(point) -> np.ndarray:
    return np.asarray(PRECISION) + np.diag(np.asarray(point) ** 2)


def damped(matrix, damping: float = DAMPING) -> np.ndarray:
    return matrix + damping * np.trace(matrix) / 2 * np.eye(2)


@eqx.filter_jit
def step(rule, state, target, points):
    return rule.update(state, target, points, None)


def walk(rule, clouds, target=CONVEX) -> list:
    """The kernels of successive steps through `clouds`."""
    state, kernels = rule.init(target, clouds[0], None), []
    for points in clouds:
        state, kernel = step(rule, state, target, points)
        kernels.append(kernel)
    return kernels


def matrix_of(metric) -> np.ndarray:
    return np.asarray(metric.root.T @ metric.root)


def averaged(curvature=EXACT, kernel=BASE, **settings) -> sk.samplers.AverageMetric:
    return sk.samplers.AverageMetric(curvature, kernel, sk.samplers.MetricSettings(DAMPING, **settings))


def mixture(kernel=BASE, **options) -> sk.samplers.AnchorMixture:
    return sk.samplers.AnchorMixture(EXACT, kernel, settings=sk.samplers.MetricSettings(DAMPING), **options)


@pytest.fixture
def clouds(key):
    return jr.normal(key, (NUM_STEPS, 4, 2))


def test_plain_adapts_the_kernel_and_remembers_nothing(clouds):
    kernels = walk(sk.samplers.FixedKernel(ADAPTIVE), clouds)
    for kernel, points in zip(kernels, clouds, strict=True):
        np.testing.assert_allclose(kernel.scalar.bandwidth, median_bandwidth(points), rtol=1e-12)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("decay", "measure_every", "refresh_every"),
    [
        *[(decay, 1, refresh_every) for decay in (0.0, 0.7, 1.0) for refresh_every in (1, 3)],
        *[(0.7, 2, 2), (0.7, 2, 4), (1.0, 3, 3), (0.7, 1, 2), (0.0, 2, 2)],
    ],
)
def test_metric_is_the_running_average_of_the_measurements_at_the_last_refresh(
    decay, measure_every, refresh_every, clouds
):
    average, measurements, expected = np.zeros((2, 2)), 0, []
    for t, points in enumerate(clouds):
        if t % measure_every == 0:
            measurements += 1
            rate = min(1 - 1 / measurements, decay)
            average = rate * average + (1 - rate) * np.mean([curvature_at(point) for point in points], axis=0)
        expected.append(damped(average) if t % refresh_every == 0 else expected[-1])
    rule = averaged(decay=decay, measure_every=measure_every, refresh_every=refresh_every)
    kernels = walk(rule, clouds)
    np.testing.assert_allclose([matrix_of(kernel.metric) for kernel in kernels], expected, rtol=1e-12)


def primitives(jaxpr, inside=()) -> set[tuple[str, bool]]:
    """The names of all primitives, and whether they are within a condition."""
    found = set()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        found.add((name, "cond" in inside))
        for value in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
            nested = getattr(value, "jaxpr", value)
            found |= primitives(nested, (*inside, name)) if hasattr(nested, "eqns") else set()
    return found


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_runs_under_one_vmap_factorise_no_more_often_than_one(decay, clouds):
    rule = averaged(decay=decay, refresh_every=4, measure_every=2)

    def run(points):
        return rule.update(rule.init(CONVEX, points, None), CONVEX, points, None)[0]

    states = jax.vmap(run)(clouds[:3])
    # The number of the step is the same in all runs, as it is in a loop under `vmap`.
    states = states._replace(steps=jnp.asarray(1, jnp.int32))
    axes = states._replace(steps=None, curvature=0, metric=0)
    stepped = jax.vmap(lambda state, own: rule.update(state, CONVEX, own, None)[0], in_axes=(axes, 0))
    used = primitives(jax.make_jaxpr(stepped)(states, clouds[:3]).jaxpr)
    assert ("cholesky", True) in used
    assert ("cholesky", False) not in used


@pytest.mark.parametrize("decay", [0.0, 0.9])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_curvature_that_is_not_finite_fails_the_step_where_it_is_measured(decay, count, clouds):
    rule = averaged(decay=decay, refresh_every=4, measure_every=2)
    state = step(rule, rule.init(CONVEX, clouds[0], None), CONVEX, clouds[0])[0]._replace(
        steps=jnp.asarray(count, jnp.int32)
    )
    found, _ = step(rule, state, CONVEX, clouds[1].at[0, 0].set(jnp.nan))
    measured = count == 0 if decay == 0 else count % 2 == 0
    assert np.isfinite(found.metric.root).all() != measured


@pytest.mark.parametrize("weighting", ["exact", "euclidean"])
def test_a_temperature_by_a_rule_is_that_of_the_particles_of_this_very_step(weighting, clouds):
    rule = sk.samplers.AnchorMixture(
        EXACT,
        BASE,
        num_anchors=2,
        temperature=sk.Median(),
        weighting=weighting,
        settings=sk.samplers.MetricSettings(DAMPING, refresh_every=2),
    )
    for kernel, points in zip(walk(rule, clouds[:3]), clouds, strict=False):
        seen = [points] if weighting == "euclidean" else [points @ root.T for root in kernel.parts.metric.root]
        np.testing.assert_allclose(kernel.temperature, np.mean([median_bandwidth(cloud) for cloud in seen]), rtol=1e-12)


def test_bandwidth_is_that_of_the_whitened_particles_of_this_very_step(clouds):
    for kernel, points in zip(walk(averaged(kernel=ADAPTIVE, refresh_every=3), clouds), clouds, strict=True):
        whitened = points @ kernel.metric.root.T
        np.testing.assert_allclose(kernel.base.scalar.bandwidth, median_bandwidth(whitened), rtol=1e-12)


def test_repair_of_the_mean_is_equation_15_to_the_letter(clouds):
    """The mean of the raw Hessians first, then |λ|: not the mean of repaired ones."""
    points = clouds[0]
    raw = -jax.jit(jax.vmap(jax.hessian(log_saddle)))(points)
    values, vectors = np.linalg.eigh(np.mean(raw, axis=0))
    assert values[0] < 0  # or there is nothing to mend
    mended = np.maximum(np.abs(values), 1e-3 * np.mean(np.abs(values)))
    rule = sk.samplers.AverageMetric(EXACT, BASE, sk.samplers.MetricSettings(DAMPING), repair="absolute")
    (kernel,) = walk(rule, points[None], SADDLE)
    np.testing.assert_allclose(matrix_of(kernel.metric), damped(vectors * mended @ vectors.T), rtol=1e-10)
    (other,) = walk(averaged(sk.Hessian()), points[None], SADDLE)
    assert np.max(np.abs(matrix_of(other.metric) - matrix_of(kernel.metric))) > 0.1


def test_repair_of_a_mean_that_is_not_dense_is_refused(clouds):
    rule = sk.samplers.AverageMetric(sk.Hessian(repair=None, diagonal=True), BASE, repair="absolute")
    with pytest.raises(ValueError, match="`repair` of the mean needs dense curvature, got Diagonal"):
        rule.init(CONVEX, clouds[0], None)


@pytest.mark.parametrize(
    ("kernel", "symmetric"),
    [
        pytest.param(BASE, False, id="radial"),
        pytest.param(sk.Graphical.coordinatewise(sk.RBF(1.3), 2), True, id="graphical"),
    ],
)
def test_root_is_symmetric_just_where_rotations_do_not_cancel(kernel, symmetric, clouds):
    (built,) = walk(averaged(kernel=kernel), clouds[:1])
    assert np.allclose(built.metric.root, built.metric.root.T, rtol=1e-12) == symmetric


@pytest.mark.parametrize(
    ("anchors", "places"),
    [
        pytest.param(None, lambda points: points, id="all particles"),
        pytest.param(3, lambda points: points[:3], id="the first three"),
        pytest.param(GIVEN, lambda points: GIVEN, id="given points"),
    ],
)
@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 1.0])
def test_mixture_has_the_blended_metric_of_every_anchor(anchors, places, shrinkage, clouds):
    sampler = sk.matrix_svgd("mixture", EXACT, BASE, anchors=anchors, shrinkage=shrinkage, damping=DAMPING)
    points = clouds[0]
    (kernel,) = walk(sampler.rule, clouds[:1])
    own = np.stack([curvature_at(anchor) for anchor in places(points)])
    expected = [damped((1 - shrinkage) * each + shrinkage * own.mean(0)) for each in own]
    np.testing.assert_array_equal(kernel.anchors, places(points))
    np.testing.assert_allclose(jax.vmap(lambda root: root.T @ root)(kernel.parts.metric.root), expected, rtol=1e-12)


def test_mixture_adapts_the_bandwidth_to_all_particles_in_every_anchors_metric(clouds):
    (kernel,) = walk(mixture(ADAPTIVE, num_anchors=3), clouds[:1])
    whitened = jax.vmap(lambda root: clouds[0] @ root.T)(kernel.parts.metric.root)
    expected = [median_bandwidth(points) for points in whitened]
    np.testing.assert_allclose(kernel.parts.base.scalar.bandwidth, expected, rtol=1e-12)


def test_anchors_move_with_the_particles_while_their_metrics_are_kept(clouds):
    rule = sk.samplers.AnchorMixture(EXACT, BASE, settings=sk.samplers.MetricSettings(DAMPING, refresh_every=2))
    kernels = walk(rule, clouds[:3])
    roots = [np.asarray(kernel.parts.metric.root) for kernel in kernels]
    np.testing.assert_array_equal([kernel.anchors for kernel in kernels], clouds[:3])
    np.testing.assert_array_equal(roots[1], roots[0])
    assert not np.allclose(roots[2], roots[1])


def test_a_numpy_integer_counts_anchors_like_any_other():
    assert sk.matrix_svgd("mixture", EXACT, anchors=np.int64(3)).rule.num_anchors == 3
