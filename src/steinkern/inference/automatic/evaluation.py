"""Evaluates the target at clouds of points, for searches that run on the host, by a single compiled program."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree, Scalar, Vector
from ...targets.target import AbstractTarget

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

    def __init__(self, target: AbstractTarget, start: PyTree, noise: np.ndarray, batch: Batch):
        self.noise = np.asarray(noise, np.float64)
        self._dtype = jax.tree.leaves(start)[0].dtype
        self._arguments = target, start, jax.device_put(np.asarray(noise, self._dtype)), batch
        self.spent = np.zeros(4, int)

    def unconstrained_start(self) -> np.ndarray:
        """The start, in unconstrained coordinates."""
        n, d = self.noise.shape
        return self._run(np.zeros((CLOUDS * n, d)), derive=False).start

    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """Log p at (m, d) points."""
        n, d = self.noise.shape
        block = CLOUDS * n
        found = []
        for place in range(0, len(points), block):
            part = points[place : place + block]
            padded = np.concatenate([part, np.broadcast_to(part[:1], (block - len(part), d))])
            found.append(self._run(padded, derive=False).values[: len(part)])
            self.spent += np.array([len(part), 0, 0, 1])
        return np.concatenate(found)

    def derivatives(self, points: np.ndarray) -> tuple[Cloud, np.ndarray]:
        """The target at (n, d) points, and the mean of −∇²log p (or of its diagonal) over those where it is finite."""
        n, d = self.noise.shape
        padded = np.concatenate([points, np.zeros(((CLOUDS - 1) * n, d))])
        seen = self._run(padded, derive=True)
        if d > DENSE_DIMENSIONS:  # a probe costs two gradients
            self.spent += np.array([0, 3 * n, 0, 3])
        else:  # Hessians are computed in sequential chunks, each of two passes
            self.spent += np.array([0, n, n, 1 + 2 * -(-n // _at_once(d))])
        return Cloud(points, seen.values[:n], seen.scores), seen.curvature

    def _run(self, points: np.ndarray, derive: bool) -> "_Evaluated":
        with np.errstate(over="ignore"):
            numbers = jax.device_put(points.astype(self._dtype))
        target, start, noise, batch = self._arguments
        found = _evaluate(target, start, numbers, noise, batch, jax.device_put(np.bool_(derive)))
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


class _Evaluated(NamedTuple):
    start: Any
    values: Any
    scores: Any
    curvature: Any


@compiled
def _evaluate(
    target: AbstractTarget, start: PyTree, points: Float[Array, "m d"], noise: Points, batch: Batch,
    derive: Bool[Array, ""],
) -> _Evaluated:  # fmt: skip
    """Log densities at all m points; or, with `derive`, values, scores and the mean curvature at the first n."""
    (n, d), m = noise.shape, points.shape[0]
    shape = (d, d) if d <= DENSE_DIMENSIONS else (d,)

    def values_alone(points: Points) -> tuple[Array, Array, Array]:
        empty = jnp.zeros((n, d), points.dtype), jnp.zeros(shape, points.dtype)
        return target.log_densities(points, batch), *empty

    def derivatives(points: Points) -> tuple[Array, Array, Array]:
        some = points[:n]
        if d <= DENSE_DIMENSIONS:
            values, scores, hessians = _with_hessians(target, some, batch)
            curvature = -_mean_of_finite(hessians)
        else:
            values, scores = jax.vmap(jax.value_and_grad(target.log_density), (0, None))(some, batch)
            curvature = _probed_curvature(target, some, noise, batch)
        return jnp.concatenate([values, jnp.zeros(m - n, values.dtype)]), scores, curvature

    vector = target.bound_space.unconstrain(start).astype(noise.dtype)  # a model's space may have another precision
    return _Evaluated(vector, *jax.lax.cond(derive, derivatives, values_alone, points))


def _at_once(d: int) -> int:
    """The number of Hessians that are computed together: their memory grows with d²."""
    return max(1, 10_000 // d)


def _with_hessians(
    target: AbstractTarget, points: Points, batch: Batch
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


def _probed_curvature(target: AbstractTarget, points: Points, noise: Points, batch: Batch) -> Vector:
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
