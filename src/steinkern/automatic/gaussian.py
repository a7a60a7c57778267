"""From a bad start to the typical set: the Gaussian nearest to the target, by Newton's method on clouds of points.

The nearest Gaussian N(m, P⁻¹) in the sense of Kullback and Leibler satisfies E[∇log p] = 0 and P = E[−∇²log p], with
expectations under itself: it is where SVGD with the kernel 1 + xᵀy comes to rest. A mode need not exist or be near any
mass (a centred hierarchy is densest where its width is 0); this Gaussian is where the mass is.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int

from .._types import Batch, Key, Points, Scalar, Vector
from ..metric import AbstractMetric, DenseMetric, DiagonalMetric
from ..target import AbstractTarget

DENSE_DIMENSIONS = 200
"""Up to so many, curvature is the exact Hessian; beyond, its diagonal by random probes."""
_MOST_ROUNDS = 100
_ENOUGH = 0.01  # nats a round: the chains do the rest
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


@eqx.filter_jit
def nearest_gaussian(target: AbstractTarget, start: Vector, noise: Points, batch: Batch = None) -> Gaussian:
    """The Gaussian nearest to the target that is found from `start`, expectations being means over a cloud.

    A round moves mean and precision towards m + P̂⁻¹E[∇log p] and P̂ = |E[−∇²log p]|, absolute values being those of
    eigenvalues relative to the present precision, by the best of 12 lengths for the evidence lower bound.

    Args:
        target: bound to its space.
        start: where the log density is finite.
        noise: (n, d), see `even_noise`; always the same, so that every round improves one function.
        batch: the data.
    """

    def bound(mean: Vector, precision: Precision) -> Scalar:
        metric = metric_of(precision)
        points = mean[None] + jax.vmap(metric.unwhiten)(noise)
        value = jnp.mean(target.log_densities(points, batch)) - metric.logdet() / 2
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    def improve(now: Gaussian) -> Gaussian:
        metric, points = now.metric, now.cloud(noise)
        drift = jnp.mean(target.scores(points, batch), axis=0)
        wanted = _wanted(metric, _mean_curvature(target, points, noise, batch), now.precision)
        move = metric_of(wanted).solve(drift)

        def at(share: Scalar) -> tuple[Vector, Precision, Scalar]:
            mean, precision = now.mean + share * move, (1 - share) * now.precision + share * wanted
            return mean, precision, bound(mean, precision)

        shares = 0.5 ** jnp.arange(_STEPS, dtype=start.dtype)
        means, precisions, bounds = jax.vmap(at)(shares)
        best = jnp.argmax(bounds)
        gain = bounds[best] - now.bound
        better = gain > 0
        return Gaussian(
            jnp.where(better, means[best], now.mean),
            jnp.where(better, precisions[best], now.precision),
            jnp.maximum(bounds[best], now.bound),
            now.rounds + 1,
            jnp.isfinite(bounds[best]) & (gain < _ENOUGH),
        )

    first = _first_precision(target, start, batch)
    scales = 4.0 ** jnp.arange(_SHRINKS, dtype=start.dtype)
    bounds = jax.vmap(lambda scale: bound(start, scale * first))(scales)
    best = jnp.argmax(bounds)
    begin = Gaussian(start, scales[best] * first, bounds[best], jnp.zeros((), jnp.int32), jnp.asarray(False))
    return jax.lax.while_loop(lambda now: ~now.settled & (now.rounds < _MOST_ROUNDS), improve, begin)


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
    good = jnp.all(jnp.isfinite(found.reshape(len(points), -1)), axis=1).astype(found.dtype)
    weights = good / jnp.maximum(jnp.sum(good), 1)
    return jnp.tensordot(weights, jnp.where(jnp.isfinite(found), found, 0), axes=1)


def _wanted(metric: AbstractMetric, curvature: Precision, precision: Precision) -> Precision:
    """The curvature made positive: its eigenvalues relative to the present precision, absolute and not too small."""
    least = 1 / _GROWTH
    if isinstance(metric, DiagonalMetric):
        return precision * jnp.maximum(jnp.abs(curvature / precision), least)
    assert isinstance(metric, DenseMetric)
    turned = metric.inverse_root.T @ curvature @ metric.inverse_root
    values, vectors = jnp.linalg.eigh((turned + turned.T) / 2)
    back = metric.root.T @ vectors
    return (back * jnp.maximum(jnp.abs(values), least)[None]) @ back.T
