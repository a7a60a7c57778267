"""Squared distances between two sets of points."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """‖x_i − y_j‖², through one matrix product in full precision."""
    centre = central(points)
    return centred_squared_distances(at - centre, points - centre)


def centred_squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """The same for points already centred: ‖x‖² + ‖y‖² − 2x·y loses digits with the distance from the origin."""
    squares = jnp.sum(at**2, axis=1)[:, None] + jnp.sum(points**2, axis=1)[None, :]
    r2 = squares - 2 * jnp.matmul(at, points.T, precision="highest")
    # What is within the rounding of the product is no distance: points that coincide are at zero.
    rounding = at.shape[1] * float(jnp.finfo(squares.dtype).eps) * squares
    return jnp.where(r2 > rounding, r2, 0)


def central(points: Float[Array, "n d"]) -> Float[Array, "1 d"]:
    """The point nearest to the mean, as a row. Unlike the mean it stays in the crowd when one point is far out."""
    offsets = jnp.sum((points - jnp.mean(points, axis=0, keepdims=True)) ** 2, axis=1)
    return points[jnp.argmin(offsets)][None, :]
