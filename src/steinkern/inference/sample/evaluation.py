"""Evaluates the target at clouds of points, for searches that run on the host, by two compiled programs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree, Scalar, Vector
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
    """Evaluates a target at clouds of n points, and counts the evaluations.

    Args:
        target: bound to its space.
        start: the parameters of one particle, in constrained coordinates.
        noise: (n, d) standard normal noise; its signs are the probes of the diagonal in many dimensions.
        batch: the full data.
    """

    def __init__(self, target: BoundTarget, start: PyTree, noise: np.ndarray, batch: Batch):
        self.noise = np.asarray(noise, np.float64)
        self.dtype = jax.tree.leaves(start)[0].dtype
        self._target, self._start, self._batch = target, start, batch
        self.spent = np.zeros(4, int)

    def unconstrained_start(self) -> np.ndarray:
        """The start, in unconstrained coordinates."""
        n, d = self.noise.shape
        return self._run_values(np.zeros((CLOUDS * n, d)))[0]

    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """Log p at (m, d) points."""
        n, d = self.noise.shape
        chunk = CLOUDS * n
        values = []
        for first in range(0, len(points), chunk):
            part = points[first : first + chunk]
            padded = np.concatenate([part, np.broadcast_to(part[:1], (chunk - len(part), d))])
            values.append(self._run_values(padded)[1][: len(part)])
            self.spent += np.array([len(part), 0, 0, 1])
        return np.concatenate(values)

    def derivatives(self, points: np.ndarray) -> tuple[Cloud, np.ndarray]:
        """The target at (n, d) points, and the mean of −∇²log p (or of its diagonal) over those where it is finite."""
        n, d = self.noise.shape
        numbers = derivatives(self._target, self._on_device(points), self._on_device(self.noise), self._batch)
        values, scores, curvature = (np.asarray(array, np.float64) for array in numbers)
        if d > DENSE_DIMENSIONS:  # a probe costs two gradients
            self.spent += np.array([0, 3 * n, 0, 3])
        else:  # Hessians are computed in sequential chunks, each of two passes
            self.spent += np.array([0, n, n, 1 + 2 * -(-n // _at_once(d))])
        return Cloud(points, values, scores), curvature

    def _run_values(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = log_densities(self._target, self._start, self._on_device(points), self._batch)
        return np.asarray(numbers[0], np.float64), np.asarray(numbers[1], np.float64)

    def _on_device(self, points: np.ndarray) -> Points:
        with np.errstate(over="ignore"):
            return jax.device_put(points.astype(self.dtype))


def compile_evaluation_ahead(target: BoundTarget, start: PyTree, n: int, batch: Batch) -> None:
    """Compile both programs of an `Evaluator` of n points in threads, side by side."""
    d, dtype = target.space.layout.size, jax.tree.leaves(start)[0].dtype
    many, some = (jax.ShapeDtypeStruct((number, d), dtype) for number in (CLOUDS * n, n))
    log_densities.compile_ahead(target, start, many, batch)
    derivatives.compile_ahead(target, some, some, batch)


@compiled
def log_densities(
    target: BoundTarget, start: PyTree, points: Float[Array, "m d"], batch: Batch
) -> tuple[Vector, Float[Array, " m"]]:
    """The start in unconstrained coordinates, and the log densities at all points."""
    vector = target.space.unconstrain(start).astype(points.dtype)  # a model's space may have another precision
    return vector, target.log_densities(points, batch)


@compiled
def derivatives(
    target: BoundTarget, points: Points, noise: Points, batch: Batch
) -> tuple[Float[Array, " n"], Points, Float[Array, "d ..."]]:
    """Values, scores and the mean curvature at the points."""
    if points.shape[1] <= DENSE_DIMENSIONS:
        values, scores, hessians = _with_hessians(target, points, batch)
        return values, scores, -_mean_of_finite(hessians)
    values, scores = jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, batch)
    return values, scores, _probed_curvature(target, points, noise, batch)


def _at_once(d: int) -> int:
    """The number of Hessians that are computed together: their memory grows with d²."""
    return max(1, 10_000 // d)


def _with_hessians(
    target: BoundTarget, points: Points, batch: Batch
) -> tuple[Float[Array, " n"], Points, Float[Array, "n d d"]]:
    """Values, scores and Hessians by forward over reverse mode.

    Reverse over reverse mode is used for functions that have a custom derivative in reverse mode only.
    """

    def score(point: Vector) -> tuple[Vector, tuple[Scalar, Vector]]:
        value, gradient = jax.value_and_grad(target.log_density)(point, batch)
        return gradient, (value, gradient)

    def run(jacobian: Any) -> tuple[Float[Array, " n"], Points, Float[Array, "n d d"]]:
        derive = jacobian(score, has_aux=True)
        number = _at_once(points.shape[1])
        mapped = jax.vmap(derive)(points) if len(points) <= number else jax.lax.map(derive, points, batch_size=number)
        hessians, (values, scores) = mapped
        return values, scores, hessians

    try:
        return run(jax.jacfwd)
    except TypeError:
        return run(jax.jacrev)


def _probed_curvature(target: BoundTarget, points: Points, noise: Points, batch: Batch) -> Vector:
    """The mean diagonal of −∇²log p over the points where it is finite, by a random probe at each point."""
    signs = jnp.where(noise > 0, 1, -1).astype(points.dtype)

    def probe(point: Vector, sign: Vector) -> Vector:
        slope = jax.grad(lambda x: jnp.dot(jax.grad(target.log_density)(x, batch), sign))
        return -sign * slope(point)

    return _mean_of_finite(jax.vmap(probe)(points, signs))


def _mean_of_finite(found: Float[Array, "n ..."]) -> Float[Array, "..."]:
    good = jnp.all(jnp.isfinite(found.reshape(len(found), -1)), axis=1).astype(found.dtype)
    weights = good / jnp.maximum(jnp.sum(good), 1)
    return jnp.tensordot(weights, jnp.where(jnp.isfinite(found), found, 0), axes=1)
