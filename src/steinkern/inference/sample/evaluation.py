"""Evaluates the target at clouds of points, for searches that run on the host, by two compiled programs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core._xla import columns_at_once
from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree, Scalar, Vector
from ...results.outcome import Cost
from ...targets.target import BoundTarget

CLOUDS = 12
"""The number of clouds of points whose log densities are computed together."""
DENSE_DIMENSIONS = 200
"""Up to this dimension curvature is the exact Hessian; beyond it, the diagonal by random probes."""


class Cloud(NamedTuple):
    """Points, and the log densities and scores there."""

    points: np.ndarray
    log_densities: np.ndarray
    scores: np.ndarray


class Evaluator:
    """Evaluates a target at clouds of n points, and adds up the `cost`.

    Args:
        target: bound to its space.
        start: the parameters of one particle, in constrained coordinates.
        noise: (n, d) standard normal noise; its signs are the probes of the diagonal in many dimensions.
        data: the full data.
    """

    def __init__(self, target: BoundTarget, start: PyTree, noise: np.ndarray, data: Batch):
        self.target, self.start, self.noise, self.data = target, start, noise, data
        self.cost = Cost()
        n, d = noise.shape
        all_clouds, one_cloud = (
            jax.ShapeDtypeStruct((number, d), jnp.result_type(float)) for number in (CLOUDS * n, n)
        )
        log_densities.compile_ahead(target, start, all_clouds, data)  # in threads, side by side
        derivatives.compile_ahead(target, one_cloud, one_cloud, data)

    def unconstrain(self, start: PyTree) -> np.ndarray:
        """A start in unconstrained coordinates."""
        n, d = self.noise.shape
        self.start = start
        return np.asarray(log_densities(self.target, start, _on_device(np.zeros((CLOUDS * n, d))), self.data)[0], float)

    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """Log p at (m, d) points."""
        n, d = self.noise.shape
        chunk, values = CLOUDS * n, []
        for first in range(0, len(points), chunk):
            rows = points[first : first + chunk]
            padded = _on_device(np.resize(rows, (chunk, d)))
            _, log_p = log_densities(self.target, self.start, padded, self.data)
            values.append(np.asarray(log_p, np.float64)[: len(rows)])
            self.cost += Cost(values=len(rows), sequential=1)
        return np.concatenate(values)

    def derivatives(self, points: np.ndarray) -> tuple[Cloud, np.ndarray]:
        """The target at (n, d) points, and the mean of −∇²log p (or of its diagonal) over those where it is finite."""
        n, d = self.noise.shape
        arrays = derivatives(self.target, _on_device(points), _on_device(self.noise), self.data)
        values, scores, curvature = (np.asarray(array, np.float64) for array in arrays)
        if d > DENSE_DIMENSIONS:  # a probe costs two gradients
            self.cost += Cost(gradients=3 * n, sequential=3)
        else:  # a Hessian takes two passes
            self.cost += Cost(gradients=n, hessians=n, sequential=3)
        return Cloud(points, values, scores), curvature


@np.errstate(over="ignore")
def _on_device(points: np.ndarray) -> Points:
    return jax.device_put(points.astype(jnp.result_type(float)))


@compiled
def log_densities(
    target: BoundTarget, start: PyTree, points: Float[Array, "m d"], batch: Batch
) -> tuple[Vector, Float[Array, " m"]]:
    """The start in unconstrained coordinates, which spares another program, and log p at the points."""
    values = target.over_points(lambda point: target.log_density(point, batch), points, batch)
    return target.space.unconstrain(start), values


@compiled
def derivatives(
    target: BoundTarget, points: Points, noise: Points, batch: Batch
) -> tuple[Float[Array, " n"], Points, Float[Array, "d ..."]]:
    """Values, scores and the mean curvature at the points."""
    if points.shape[1] <= DENSE_DIMENSIONS:
        values, scores, hessians = _with_hessians(target, points, batch)
        return values, scores, -_mean_of_finite(hessians)
    values, scores = target.values_and_scores(points, batch)
    return values, scores, _probed_curvature(target, points, noise, batch)


def _with_hessians(
    target: BoundTarget, points: Points, batch: Batch
) -> tuple[Float[Array, " n"], Points, Float[Array, "n d d"]]:
    """Values, scores and Hessians by forward over reverse mode.

    Reverse over reverse mode is used for functions that have a custom derivative in reverse mode only, and one column
    after the other for points that are evaluated one after the other.
    """
    n, d = points.shape
    at_once = max(number for number in range(1, n + 1) if n % number == 0 and number * d <= max(d, columns_at_once()))

    def score(point: Vector) -> tuple[Vector, tuple[Scalar, Vector]]:
        value, gradient = jax.value_and_grad(target.log_density)(point, batch)
        return gradient, (value, gradient)

    def by_columns(point: Vector) -> tuple[Float[Array, "d d"], tuple[Scalar, Vector]]:
        _, pull, values = jax.vjp(score, point, has_aux=True)
        return jax.lax.map(lambda direction: pull(direction)[0], jnp.eye(d, dtype=point.dtype)), values

    def run(derive: Any) -> tuple[Float[Array, " n"], Points, Float[Array, "n d d"]]:
        mapped = jax.lax.map(jax.vmap(derive), points.reshape(-1, at_once, d))
        hessians, (values, scores) = jax.tree.map(lambda leaf: leaf.reshape(n, *leaf.shape[2:]), mapped)
        return values, scores, hessians

    if target.in_series(points, batch):
        hessians, (values, scores) = jax.lax.map(by_columns, points)
        return values, scores, hessians
    try:
        return run(jax.jacfwd(score, has_aux=True))
    except TypeError:
        return run(jax.jacrev(score, has_aux=True))


def _probed_curvature(target: BoundTarget, points: Points, noise: Points, batch: Batch) -> Vector:
    """The mean diagonal of −∇²log p over the points where it is finite, by a random probe at each point."""
    signs = jnp.where(noise > 0, 1, -1).astype(points.dtype)

    def probe(point: Vector, sign: Vector) -> Vector:
        slope = jax.grad(lambda x: jnp.dot(jax.grad(target.log_density)(x, batch), sign))
        return -sign * slope(point)

    return _mean_of_finite(jax.vmap(probe)(points, signs))


def _mean_of_finite(values: Float[Array, "n ..."]) -> Float[Array, "..."]:
    finite = jnp.all(jnp.isfinite(values.reshape(len(values), -1)), axis=1).astype(values.dtype)
    weights = finite / jnp.maximum(jnp.sum(finite), 1)
    return jnp.tensordot(weights, jnp.where(jnp.isfinite(values), values, 0), axes=1)
