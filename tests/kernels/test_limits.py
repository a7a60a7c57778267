"""Limits in which one kernel is another, the invariances of each, and the weights of the mixture."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

import steinkern as sk
from steinkern.linalg.metrics import BlocksMetric, DenseMetric, DiagonalMetric
from tests.helpers import cases
from tests.helpers.oracles import assert_close, median_bandwidth

N, D = 7, 3  # one shape for all, so that kernels of one type are compiled once
RBF = sk.kernels.Isotropic(sk.RBF(1.3))
IMQ = sk.kernels.Isotropic(sk.IMQ(0.7))
GRAPHICAL = sk.Graphical(sk.RBF(1.1), [[0, 2], [1]], [[], [0]])
MATRIX = jnp.array([[1.2, 0.3, -0.4], [0.1, 0.8, 0.2], [0.5, -0.6, 1.5]])
SHIFT = jnp.array([3.0, -40.0, 0.7])
METRIC = DenseMetric.of(MATRIX.T @ MATRIX)
SYMMETRIC = DenseMetric.of(MATRIX.T @ MATRIX, symmetric=True)
FIRST, OTHERS = DenseMetric.of(jnp.array([[0.7]])), DenseMetric.of(jnp.array([[1.2, 0.3], [0.3, 0.8]]))


# Compiling these takes longer than running them.
jit = partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0})
random_scored, mixture = jit(cases.random_scored), jit(cases.mixture)


@jit
def evaluated(kernel: sk.kernels.AbstractMatrixKernel, source: sk.kernels.Scored) -> tuple[jax.Array, jax.Array]:
    """The velocity at the particles, and K between the first and the last."""
    return kernel.velocity(source.points, source), kernel(source.points[0], source.points[-1])


def velocity(kernel: sk.kernels.AbstractMatrixKernel, source: sk.kernels.Scored) -> jax.Array:
    return evaluated(kernel, source)[0]


def root_of(matrix: jax.Array) -> DenseMetric:
    """The metric Q = RᵀR of a given root R."""
    return DenseMetric(matrix, jnp.linalg.inv(matrix), 2 * jnp.linalg.slogdet(matrix)[1])


def rotation(key) -> jax.Array:
    return jnp.linalg.qr(jr.normal(key, (D, D)))[0]


def copies(anchors: int) -> sk.kernels.Mixture:
    """A mixture of identical anchors."""
    metrics = jax.tree.map(lambda leaf: jnp.stack([leaf] * anchors), METRIC)
    places = jnp.ones((anchors, D))
    return sk.kernels.Mixture.of(RBF, metrics, places, places)


def limit(name: str, kernel, other, factor: float = 1.0):
    """The first kernel is the other one times the factor."""
    return pytest.param(kernel, other, factor, id=name)


LIMITS = [
    limit("the identity metric is vanilla", sk.kernels.Preconditioned(RBF, DenseMetric.of(jnp.eye(D))), RBF),
    limit("the identity metric around IMQ is vanilla", sk.kernels.Preconditioned(IMQ, DenseMetric.of(jnp.eye(D))), IMQ),
    limit(  # Q⁻¹ k(‖x − y‖²_Q) with Q = cI is k(c r²) / c: bandwidth h / c, and the step divided by c
        "the metric cI is a narrower bandwidth and a shorter step",
        sk.kernels.Preconditioned(RBF, DenseMetric.of(4.0 * jnp.eye(D))),
        sk.kernels.Isotropic(sk.RBF(1.3 / 4.0)),
        1 / 4.0,
    ),
    limit(
        "a diagonal metric is a dense one",
        sk.kernels.Preconditioned(GRAPHICAL, DiagonalMetric(jnp.array([0.5, 1.0, 2.0]))),
        sk.kernels.Preconditioned(GRAPHICAL, DenseMetric.of(jnp.diag(jnp.array([0.25, 1.0, 4.0])))),
    ),
    limit("one anchor is the constant kernel", copies(1), sk.kernels.Preconditioned(RBF, METRIC)),
    limit("m identical anchors are the constant kernel / m", copies(5), sk.kernels.Preconditioned(RBF, METRIC), 1 / 5),
    limit("one block is isotropic", sk.Graphical(sk.RBF(1.3), [[2, 0, 1]]), RBF),
    limit("blocks that see all are isotropic", sk.Graphical(sk.RBF(1.3), [[0], [1, 2]], [[1, 2], [0]]), RBF),
    limit("one kernel for one block is that kernel", sk.kernels.PerBlock((GRAPHICAL,), (D,)), GRAPHICAL),
    limit(
        "a kernel a block of the same bandwidth is graphical",
        sk.kernels.PerBlock((RBF, RBF), (1, 2)),
        sk.Graphical(sk.RBF(1.3), [[0], [1, 2]]),
    ),
    limit(
        "a metric a block is a metric in blocks around a graphical kernel",
        sk.kernels.PerBlock((sk.kernels.Preconditioned(RBF, FIRST), sk.kernels.Preconditioned(RBF, OTHERS)), (1, 2)),
        sk.kernels.Preconditioned(sk.Graphical(sk.RBF(1.3), [[0], [1, 2]]), BlocksMetric((FIRST, OTHERS))),
    ),
    limit("the weight 1 is vanilla", sk.kernels.Tilted(RBF, lambda x: jnp.zeros(())), RBF),
    limit(
        "a constant weight c gives c²",
        sk.kernels.Tilted(GRAPHICAL, lambda x: jnp.log(jnp.full((), 3.0))),
        GRAPHICAL,
        9.0,
    ),
    limit("the identity map changes nothing", sk.kernels.Transformed(GRAPHICAL, lambda x: x), GRAPHICAL),
    limit("a translation changes nothing", sk.kernels.Transformed(RBF, lambda x: x + SHIFT), RBF),
    limit(
        "a linear map is a metric",
        sk.kernels.Transformed(RBF, lambda x: MATRIX @ x),
        sk.kernels.Preconditioned(RBF, METRIC),
    ),
    limit(
        "the map Q^½ is the metric Q, around a kernel that is not radial",
        sk.kernels.Transformed(GRAPHICAL, lambda x: SYMMETRIC.root @ x),
        sk.kernels.Preconditioned(GRAPHICAL, SYMMETRIC),
    ),
]


@pytest.mark.every(4)
@pytest.mark.parametrize(("kernel", "other", "factor"), LIMITS)
def test_in_the_limit_one_kernel_is_another(kernel, other, factor, key):
    source = random_scored(key, N, D)
    for actual, expected in zip(evaluated(kernel, source), evaluated(other, source), strict=True):
        assert_close(actual, factor * expected)


@pytest.mark.thorough
def test_a_hot_mixture_is_the_mean_of_its_parts_divided_by_m(key):
    mixture_key, source_key = jr.split(key)
    # Weights differ from 1/m by a term in r²/T, so T = 1e14 leaves no trace at this tolerance.
    kernel = mixture(mixture_key, D, 5, temperature=1e14, weighting="no_determinant")
    source = random_scored(source_key, N, D)
    parts = jit(jax.vmap(lambda part: part.velocity(source.points, source)))(kernel.parts)
    assert_close(velocity(kernel, source), jnp.sum(parts, axis=0) / 5**2)


@pytest.mark.parametrize("base", [RBF, IMQ], ids=["rbf", "imq"])
def test_a_single_particle_moves_along_the_preconditioned_gradient(base, key):
    source = random_scored(key, 1, D)
    expected = jnp.linalg.solve(MATRIX.T @ MATRIX, source.scores[0])
    assert_close(velocity(base, source), source.scores)
    assert_close(velocity(sk.kernels.Preconditioned(base, METRIC), source)[0], expected)


@pytest.mark.parametrize("kernel", [RBF, IMQ, sk.kernels.Linear(0.8)], ids=["rbf", "imq", "linear"])
def test_a_kernel_that_claims_rotation_invariance_turns_with_the_particles(kernel, key):
    source_key, rotation_key = jr.split(key)
    source, turn = random_scored(source_key, N, D), rotation(rotation_key)
    turned = sk.kernels.Scored(source.points @ turn.T, source.scores @ turn.T, source.weights)
    assert kernel.rotation_invariant
    assert_close(velocity(kernel, turned), velocity(kernel, source) @ turn.T)


@pytest.mark.parametrize("base", [RBF, IMQ, sk.kernels.Linear(0.8)], ids=["rbf", "imq", "linear"])
def test_any_root_of_the_metric_gives_the_same_velocity(base, key):
    source_key, rotation_key = jr.split(key)
    source = random_scored(source_key, N, D)
    expected = velocity(sk.kernels.Preconditioned(base, METRIC), source)
    for metric in (SYMMETRIC, root_of(MATRIX), root_of(rotation(rotation_key) @ MATRIX)):
        assert_close(velocity(sk.kernels.Preconditioned(base, metric), source), expected)


def of_metrics(metrics: DenseMetric, anchors: jax.Array) -> sk.kernels.Mixture:
    return sk.kernels.Mixture(jax.vmap(lambda metric: sk.kernels.Preconditioned(RBF, metric))(metrics), anchors)


def mapped(metric: DenseMetric) -> DenseMetric:
    """The metric Q in the coordinates Mx + b: M⁻ᵀ Q M⁻¹."""
    return root_of(metric.root @ jnp.linalg.inv(MATRIX))


def affine(points: jax.Array) -> jax.Array:
    return points @ MATRIX.T + SHIFT[None, :]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["average", "mixture"])
def test_the_velocity_is_affine_equivariant(kind, key):
    mixture_key, source_key = jr.split(key)
    parts = mixture(mixture_key, D, 5, base=RBF)
    one = jax.tree.map(lambda leaf: leaf[0], parts.parts.metric)
    kernel, other = {
        "average": (sk.kernels.Preconditioned(IMQ, one), sk.kernels.Preconditioned(IMQ, mapped(one))),
        "mixture": (parts, of_metrics(jax.vmap(mapped)(parts.parts.metric), affine(parts.anchors))),
    }[kind]
    source = random_scored(source_key, N, D)
    scores = jnp.linalg.solve(MATRIX.T, source.scores.T).T
    moved = velocity(other, sk.kernels.Scored(affine(source.points), scores, source.weights))
    assert_close(moved, velocity(kernel, source) @ MATRIX.T)


def log_concave(matrix, shift, x):
    """The log density of Mu + b, for a log-concave law of u."""
    u = jnp.linalg.solve(matrix, x - shift)
    return -0.5 * jnp.sum(u**2) - jnp.sum(jnp.log(jnp.cosh(u + 0.3 * jnp.roll(u, 1))))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["average", "mixture"])
def test_a_step_with_the_hessian_and_the_median_bandwidth_is_affine_equivariant(kind, key):
    # Damping adds a multiple of I and is the one thing here that is not equivariant, so it is made negligible.
    sampler = sk.matrix_svgd(kind, sk.Hessian(repair=None), optimizer=optax.sgd(0.5), damping=1e-15)

    @jit
    def stepped(matrix, shift, points):
        target = sk.LogDensity(jax.tree_util.Partial(log_concave, matrix, shift)).bind(points[0])
        return sampler.step(jr.key(0), sampler.init(target, points), target)[0].points

    points = jr.normal(key, (N, D))
    expected = affine(stepped(jnp.eye(D), jnp.zeros(D), points))
    assert_close(stepped(MATRIX, SHIFT, affine(points)), expected)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_mixture_weights_are_gaussian_responsibilities(temperature, key):
    mixture_key, point_key = jr.split(key)
    kernel = mixture(mixture_key, D, 5, temperature=temperature)
    x = 2 * jr.normal(point_key, (D,))
    roots = np.asarray(kernel.parts.metric.root)
    covariances = temperature * np.linalg.inv(np.swapaxes(roots, 1, 2) @ roots)
    densities = [multivariate_normal.logpdf(x, z, c) for z, c in zip(kernel.anchors, covariances, strict=True)]
    assert_close(jnp.exp(kernel.log_weights(x)), softmax(densities))
    assert_close(jnp.sum(jnp.exp(kernel.log_weights(x))), 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("weighting", ["exact", "euclidean"])
def test_a_temperature_by_a_rule_is_the_mean_over_the_anchors_of_what_it_reads_off_their_distances(weighting, key):
    metric_key, points_key, source_key = jr.split(key, 3)
    metrics = mixture(metric_key, D, 2, base=RBF).parts.metric
    points = jr.normal(points_key, (N, D))
    clouds = [points] if weighting == "euclidean" else [points @ root.T for root in metrics.root]
    temperature = np.mean([median_bandwidth(cloud) for cloud in clouds])
    by_rule, by_hand = (
        jit(sk.kernels.Mixture.of)(RBF, metrics, points[:2], points, value, weighting)
        for value in (sk.Median(), temperature)
    )
    assert_close(by_rule.temperature, temperature)
    source = random_scored(source_key, N, D)
    assert_close(velocity(by_rule, source), velocity(by_hand, source))


@pytest.mark.parametrize(("weighting", "share"), [("exact", 0.8), ("no_determinant", 0.5), ("euclidean", 0.5)])
def test_the_sharper_of_two_anchors_in_one_place_has_the_larger_weight(weighting, share):
    # Q = I and Q = 4I in the plane: the densities at the anchor are as √det 1 = 1 to √det 16 = 4.
    metrics = jax.vmap(DiagonalMetric)(jnp.array([[1.0, 1.0], [2.0, 2.0]]))
    places = jnp.zeros((2, 2))
    kernel = sk.kernels.Mixture.of(RBF, metrics, places, places, weighting=weighting)
    assert_close(jnp.exp(kernel.log_weights(places[0])), [1 - share, share])


def test_far_from_all_anchors_the_nearest_one_alone_moves_a_particle(key):
    mixture_key, source_key = jr.split(key)
    kernel = mixture(mixture_key, D, 5, base=RBF)
    source = random_scored(source_key, N, D)
    far = jnp.array([1e6, -1e6, 1e6])
    log_weights = kernel.log_weights(far)
    assert jnp.all(jnp.isfinite(log_weights))
    together = eqx.tree_at(lambda s: s.points, source, source.points.at[0].set(far))
    assert jnp.all(jnp.isfinite(velocity(kernel, together)))
    # Alone there, with weights that are 0 and 1 to all digits, it moves by Q⁻¹s of the nearest anchor.
    nearest = jax.tree.map(lambda leaf: leaf[jnp.argmax(log_weights)], kernel.parts.metric)
    alone = sk.kernels.Scored(far[None], source.scores[:1], jnp.ones(1))
    assert_close(velocity(kernel, alone)[0], nearest.solve(source.scores[0]))


def test_a_mixture_may_have_fewer_anchors_than_particles(key):
    metrics = jax.tree.map(lambda leaf: leaf[None], METRIC)
    source = random_scored(key, N, D)
    kernel = sk.kernels.Mixture.of(RBF, metrics, source.points[:1], source.points)
    assert_close(velocity(kernel, source), velocity(sk.kernels.Preconditioned(RBF, METRIC), source))
