"""Squared distances between two sets of points."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

_CROWDED = 0.25  # of the squared distance from the mean: neighbours so near make a crowd


def squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """‖x_i − y_j‖², through one matrix product in full precision."""
    centre = central(points)
    return centred_squared_distances(at - centre, points - centre)


def centred_squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """The same for points already centred: ‖x‖² + ‖y‖² − 2x·y loses digits with the distance from the origin."""
    squares = jnp.sum(at**2, axis=1)[:, None] + jnp.sum(points**2, axis=1)[None, :]
    r2 = squares - 2 * jnp.matmul(at, points.T, precision="highest")
    # What is within the rounding of the product is no distance: points that coincide are at zero. NaN stays NaN.
    rounding = at.shape[1] * float(jnp.finfo(squares.dtype).eps) * squares
    return jnp.where(r2 <= rounding, 0, r2)


def _row(points: Float[Array, "n d"], index: Array) -> Float[Array, "1 d"]:
    return points[index][None, :]


def central(points: Float[Array, "n d"], take: Callable[[Array, Array], Array] = _row) -> Float[Array, "1 d"]:
    """A point among the others, as a row: the one nearest to the mean, or the mean where that has no nearer neighbours.

    The mean lies outside the crowd where one point is far out, or where there are several crowds. In many dimensions
    all points are about as far from it as from one another, and from the mean their squared norms are half as large.

    Args:
        points: the points.
        take: how to get row i of the points, as a row.
    """
    mean = jnp.mean(points, axis=0, keepdims=True)
    offsets = jnp.sum((points - mean) ** 2, axis=1)
    place = jnp.argmin(offsets)
    nearest = take(points, place)
    others = jnp.where(jnp.arange(points.shape[0]) == place, jnp.inf, jnp.sum((points - nearest) ** 2, axis=1))
    return jnp.where(jnp.min(others) >= _CROWDED * jnp.min(offsets), mean, nearest)
