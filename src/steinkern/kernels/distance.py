"""Squared distances between two sets of points."""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core._xla import reduce_together

_CLUSTER_RATIO = 0.25
"""A neighbour within this share of the squared distance from the mean makes a cluster."""


def squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """‖x_i − y_j‖², through one matrix product in full precision."""
    center = central(points)
    return centered_squared_distances(at - center, points - center)


def centered_squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """‖x_i − y_j‖² of centred points: ‖x‖² + ‖y‖² − 2x·y loses digits with the distance from the origin."""
    squares = jnp.sum(at**2, axis=1)[:, None] + jnp.sum(points**2, axis=1)[None, :]
    r2 = squares - 2 * jnp.matmul(at, points.T, precision="highest")
    return clear_rounding(r2, squares, at.shape[1])


def clear_rounding(r2: Float[Array, "m n"], squares: Float[Array, "m n"], dimension: int) -> Float[Array, "m n"]:
    """Set distances within the rounding of ‖x‖² + ‖y‖² − 2x·y to zero: equal points have distance 0. NaN stays NaN.

    Args:
        r2: the distances.
        squares: ‖x‖² + ‖y‖².
        dimension: the number of terms of the products, whose rounding grows with its root.
    """
    terms = min(dimension, 8 * math.sqrt(dimension))
    return jnp.where(r2 <= terms * float(jnp.finfo(squares.dtype).eps) * squares, 0, r2)


def _row(points: Float[Array, "n d"], index: Array) -> Float[Array, "1 d"]:
    return points[index][None, :]


def central(points: Float[Array, "n d"], take: Callable[[Array, Array], Array] = _row) -> Float[Array, "1 d"]:
    """The centre for `centered_squared_distances`, as a row: the point nearest to the mean, or the mean itself.

    An outlier or several clusters can put the mean outside all clusters; then the nearest point is the better centre.
    The mean is used where that point has no near neighbours. In many dimensions this is the usual case: all points are
    about as far from the mean as from one another, and squared norms about the mean are half as large.

    Args:
        points: the points.
        take: `take(points, i)` returns row i with shape (1, d).
    """
    mean = jnp.mean(points, axis=0, keepdims=True)
    offsets = jnp.sum((points - mean) ** 2, axis=1)
    index, least = jnp.argmin(offsets), jnp.min(offsets)
    nearest = take(points, index)
    others = jnp.where(jnp.arange(points.shape[0]) == index, jnp.inf, jnp.sum((points - nearest) ** 2, axis=1))
    nearest_other, _ = reduce_together(("min", "max"), (others, others))
    return jnp.where(nearest_other >= _CLUSTER_RATIO * least, mean, nearest)
