"""The sums over sources that every backend computes. Sums over parts of the sources add up to the whole.

The velocity φ(x) = Σ_j w_j [k(r²) s_j − 2k'(r²) (x − y_j)], Eq. (5), is `drive − mass × x` with

    drive = Σ_j w_j [k(r²) s_j + 2k'(r²) y_j]     and     mass = Σ_j 2 w_j k'(r²).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.particles import Scored
from ...linalg.metrics import dot
from ..distance import centered_squared_distances
from ..scalar import AbstractScalarKernel


class Sums(NamedTuple):
    """The two sums of a velocity, for every row x."""

    drive: Float[Array, "m d"]
    mass: Float[Array, " m"]

    def velocity(self, at: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """φ at the rows that the sums were made for."""
        return self.drive - self.mass[:, None] * at


def velocity_sums(kernel: AbstractScalarKernel, at: Float[Array, "m d"], source: Scored) -> Sums:
    """The sums through the whole matrix of m n distances. Points must be centred; `distance` gives the reason."""
    weights = source.weights[:, None]
    r2 = centered_squared_distances(at, source.points)
    slope = kernel.constant_slope(r2.dtype)
    value, derivative = kernel.profile(r2)
    if slope is not None:  # k' = slope × k, so drive and repulsion share one matrix product
        sums = dot(value, weights * _with_ones(source.scores + 2 * slope * source.points))
        return Sums(sums[:, :-1], 2 * slope * sums[:, -1])
    sums = 2 * dot(derivative, weights * _with_ones(source.points))
    return Sums(dot(value, weights * source.scores) + sums[:, :-1], sums[:, -1])


def _with_ones(points: Float[Array, "n d"]) -> Float[Array, "n d1"]:
    """The points with a column of ones, so that one matrix product gives a sum over them and that of their weights."""
    return jnp.concatenate([points, jnp.ones_like(points[:, :1])], axis=1)


def divergence_sum(kernel: AbstractScalarKernel, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
    """∇·φ(x) = Σ_j w_j [2k'(r²) (x − y_j)·s_j − 2d k'(r²) − 4r² k''(r²)], itself a sum over the sources."""
    r2 = centered_squared_distances(at, source.points)
    _, derivative = kernel.profile(r2)
    along = dot(at, source.scores.T) - jnp.sum(source.points * source.scores, axis=1)[None, :]
    each = 2 * derivative * (along - at.shape[1]) - 4 * r2 * kernel.second_derivative(r2)
    return dot(each, source.weights)
