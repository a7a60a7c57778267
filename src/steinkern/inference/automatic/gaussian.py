"""From a bad start to the typical set: the Gaussian nearest to the target, by Newton's method on clouds of points.

The nearest Gaussian N(m, P⁻¹) in the sense of Kullback and Leibler satisfies E[∇log p] = 0 and P = E[−∇²log p], with
expectations under itself: a Gaussian cloud moved by SVGD with the kernel 1 + xᵀy comes to rest there. A mode need not
exist or be near any mass (a centred hierarchy is densest where its width is 0); this Gaussian is where the mass is.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int

from ...core.metric import AbstractMetric, DenseMetric, DiagonalMetric
from ...core.programs import compiled
from ...core.types import Batch, Key, Points, Scalar, Vector
from ...targets.target import AbstractTarget

DENSE_DIMENSIONS = 200
"""Up to so many, curvature is the exact Hessian; beyond, its diagonal by random probes."""
_MOST_ROUNDS = 100
_ENOUGH = 0.01  # nats a round: the chains do the rest
_UPWARDS = 0.1  # of the present precision: curvature that noise does not turn upwards
_GROWTH = 16.0  # of a variance in one round: what is flat here may not be flat there
_STEPS = 12  # lengths that are tried at once, each half the one before
_SHRINKS = 20  # first clouds that are tried at once, each a quarter of the one before

Precision = Float[Array, "..."]
"""(d, d), or (d,) for a diagonal one."""


class Gaussian(NamedTuple):
    """N(mean, precision⁻¹), and how it was found."""

    mean: Vector
    precision: Precision
    bound: Scalar
    """The evidence lower bound, up to a constant: log of the target's mass, less the distance to the Gaussian."""
    rounds: Int[Array, ""]
    settled: Bool[Array, ""]
    widening: Bool[Array, ""]
    """Whether directions along which the density curves upwards are widened, instead of what their size asks for."""

    @property
    def metric(self) -> AbstractMetric:
        """The metric in which it is standard normal."""
        return metric_of(self.precision)

    def cloud(self, noise: Points) -> Points:
        """The points that standard normal `noise` stands for."""
        return self.mean[None] + jax.vmap(self.metric.unwhiten)(noise)


def metric_of(precision: Precision) -> AbstractMetric:
    """The metric of a precision matrix, or of the diagonal of one."""
    return DiagonalMetric(jnp.sqrt(precision)) if precision.ndim == 1 else DenseMetric.of(precision)


def even_noise(key: Key, n: int, d: int, dtype: Any) -> Points:
    """Standard normal noise whose own mean is 0 and whose own covariance is the identity, as far as n points allow."""
    noise = jr.normal(key, (n, d), dtype)
    left, sizes, right = jnp.linalg.svd(noise - jnp.mean(noise, axis=0, keepdims=True), full_matrices=False)
    kept = jnp.where(sizes > 1e-6 * sizes[0], 1, 0).astype(dtype)
    return jnp.matmul(left * kept[None], right, precision="highest") * n**0.5


@compiled
def nearest_gaussian(
    target: AbstractTarget, start: Vector, noise: Points, batch: Batch = None, precision: Precision | None = None,
    most_rounds: int = _MOST_ROUNDS,
) -> Gaussian:  # fmt: skip
    """The Gaussian nearest to the target that is found from `start`, expectations being means over a cloud.

    A round moves mean and precision towards m + P̂⁻¹E[∇log p] and P̂ = |E[−∇²log p]|, absolute values being those of
    eigenvalues relative to the present precision, by the best of 12 lengths for the evidence lower bound. Where that
    ends although the density curves upwards on average, no Gaussian is at rest: it is widened along such directions.
    Where every length leads beyond an edge of the density, it ends as well.

    Args:
        target: bound to its space.
        start: where the log density is finite.
        noise: (n, d), see `even_noise`; always the same, so that every round improves one function.
        batch: the data.
        precision: of the first cloud; by default that of the curvature at the start, or as many times that as it needs
            for the cloud to have a finite log density.
        most_rounds: after which it ends, settled or not.
    """

    def bound(mean: Vector, precision: Precision) -> Scalar:
        return _bound(target, mean, metric_of(precision), noise, batch)

    def improve(now: Gaussian) -> Gaussian:
        metric, points = now.metric, now.cloud(noise)
        drift = _mean_of_finite(jax.vmap(jax.grad(target.log_density), (0, None))(points, batch))
        curvature = _mean_curvature(target, points, noise, batch)
        wanted, least = _wanted(metric, curvature, now.precision, now.widening)
        move = metric_of(wanted).solve(drift)

        def at(share: Scalar) -> tuple[Vector, Precision, Scalar]:
            mean, precision = now.mean + share * move, (1 - share) * now.precision + share * wanted
            return mean, precision, bound(mean, precision)

        shares = 0.5 ** jnp.arange(_STEPS, dtype=start.dtype)
        means, precisions, bounds = jax.vmap(at)(shares)
        best = jnp.argmax(bounds)
        gain = bounds[best] - now.bound
        better = gain > 0
        # An edge in every direction: the bound is finite here and nowhere that a step leads.
        ended = jnp.where(jnp.isfinite(bounds[best]), gain < _ENOUGH, jnp.isfinite(now.bound))
        upwards = ended & ~now.widening & (least < -_UPWARDS)
        return Gaussian(
            jnp.where(better, means[best], now.mean),
            jnp.where(better, precisions[best], now.precision),
            jnp.maximum(bounds[best], now.bound),
            now.rounds + 1,
            ended & ~upwards,
            now.widening | upwards,
        )

    first = _first_precision(target, start, batch) if precision is None else precision
    scales = 4.0 ** jnp.arange(_SHRINKS if precision is None else 1, dtype=start.dtype)
    bounds = jax.vmap(lambda scale: bound(start, scale * first))(scales)
    best = jnp.argmax(bounds)
    no = jnp.asarray(False)
    begin = Gaussian(start, scales[best] * first, bounds[best], jnp.zeros((), jnp.int32), no, no)
    return jax.lax.while_loop(lambda now: ~now.settled & (now.rounds < most_rounds), improve, begin)


@compiled
def bounds_at(
    target: AbstractTarget, gaussian: Gaussian, mean: Vector, scales: Float[Array, " k"], noise: Points, batch: Batch
) -> tuple[Float[Array, " k"], Vector]:
    """The evidence lower bounds of Gaussians of this mean and so many times the standard deviations of a Gaussian.

    And the point of the highest density among their clouds.
    """
    metric, d = gaussian.metric, gaussian.mean.shape[0]
    steps = jax.vmap(metric.unwhiten)(noise)
    points = mean[None, None] + scales[:, None, None] * steps[None]
    values = jax.vmap(lambda cloud: target.log_densities(cloud, batch))(points)
    bounds = jnp.mean(values, axis=1) - metric.logdet() / 2 + d * jnp.log(scales)
    highest = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
    return jnp.where(jnp.isfinite(bounds), bounds, -jnp.inf), points.reshape(-1, d)[highest]


def _bound(target: AbstractTarget, mean: Vector, metric: AbstractMetric, noise: Points, batch: Batch) -> Scalar:
    points = mean[None] + jax.vmap(metric.unwhiten)(noise)
    value = jnp.mean(target.log_densities(points, batch)) - metric.logdet() / 2
    return jnp.where(jnp.isfinite(value), value, -jnp.inf)


def evaluations(gaussian: Gaussian, n: int) -> tuple[int, int, int, int]:
    """Values, gradients and Hessians that it took, and how many batches of them one after the other."""
    rounds = int(gaussian.rounds)
    values = n * (_SHRINKS + _STEPS * rounds)
    if gaussian.precision.ndim == 1:  # a probe is worth two gradients
        return values, 3 * n * rounds, 0, 1 + 4 * rounds
    d = len(gaussian.mean)
    parts = -(-n // _at_once(d))  # of the points, whose Hessians are computed one after the other; each is two deep
    return values, n * rounds, n * rounds + 1, 3 + (2 + 2 * parts) * rounds


def _first_precision(target: AbstractTarget, start: Vector, batch: Batch) -> Precision:
    """|−∇²log p| at the start, with 1 where it says nothing."""
    d = start.shape[0]
    if d > DENSE_DIMENSIONS:
        return jnp.ones_like(start)
    hessian = -_hessian(target, start, batch)
    diagonal = jnp.abs(jnp.diagonal(hessian))
    scale = jnp.sqrt(jnp.where(jnp.isfinite(diagonal) & (diagonal > 0), diagonal, 1))
    relative = hessian / (scale[:, None] * scale[None])
    relative = jnp.where(jnp.all(jnp.isfinite(relative)), (relative + relative.T) / 2, jnp.eye(d, dtype=start.dtype))
    values, vectors = jnp.linalg.eigh(relative)
    values = jnp.maximum(jnp.abs(values), float(jnp.finfo(start.dtype).eps) ** 0.5)
    return jnp.matmul(vectors * values[None], vectors.T, precision="highest") * scale[:, None] * scale[None]


def _at_once(d: int) -> int:
    """How many Hessians are computed together: their memory grows with d²."""
    return max(1, 10_000 // d)


def _hessian(target: AbstractTarget, point: Vector, batch: Batch) -> Float[Array, "d d"]:
    """Forward over reverse; reverse over reverse where a function has a derivative of its own in reverse mode alone."""
    try:
        return jax.hessian(target.log_density)(point, batch)
    except TypeError:
        return jax.jacrev(jax.grad(target.log_density))(point, batch)


def _mean_curvature(target: AbstractTarget, points: Points, noise: Points, batch: Batch) -> Precision:
    """The mean of −∇²log p over the points at which it is finite, or of its diagonal."""
    d = points.shape[1]
    if d <= DENSE_DIMENSIONS:
        found = -jax.lax.map(lambda point: _hessian(target, point, batch), points, batch_size=_at_once(d))
    else:
        signs = jnp.where(noise > 0, 1, -1).astype(points.dtype)

        def probed(point: Vector, sign: Vector) -> Vector:
            slope = jax.grad(lambda x: jnp.dot(jax.grad(target.log_density)(x, batch), sign))
            return -sign * slope(point)

        found = jax.vmap(probed)(points, signs)
    return _mean_of_finite(found)


def _mean_of_finite(found: Float[Array, "n ..."]) -> Float[Array, "..."]:
    good = jnp.all(jnp.isfinite(found.reshape(len(found), -1)), axis=1).astype(found.dtype)
    weights = good / jnp.maximum(jnp.sum(good), 1)
    return jnp.tensordot(weights, jnp.where(jnp.isfinite(found), found, 0), axes=1)


def _wanted(
    metric: AbstractMetric, curvature: Precision, precision: Precision, widening: Bool[Array, ""]
) -> tuple[Precision, Scalar]:
    """The curvature made positive, and the least of its eigenvalues relative to the present precision.

    They are made absolute and not too small; where `widening`, negative ones are made as small as that.
    """
    least = 1 / _GROWTH

    def positive(values: Vector) -> Vector:
        return jnp.where(widening & (values < 0), least, jnp.maximum(jnp.abs(values), least))

    if isinstance(metric, DiagonalMetric):
        relative = curvature / precision
        return precision * positive(relative), jnp.min(relative)
    assert isinstance(metric, DenseMetric)
    turned = metric.inverse_root.T @ curvature @ metric.inverse_root
    values, vectors = jnp.linalg.eigh((turned + turned.T) / 2)
    back = metric.root.T @ vectors
    return (back * positive(values)[None]) @ back.T, values[0]
