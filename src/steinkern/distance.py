"""Squared distances between two sets of points."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """‖x_i − y_j‖², through one matrix product in full precision."""
    centre = jnp.mean(points, axis=0, keepdims=True)
    return centred_squared_distances(at - centre, points - centre)


def centred_squared_distances(at: Float[Array, "m d"], points: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """The same for points already centred: ‖x‖² + ‖y‖² − 2x·y loses digits with the distance from the origin."""
    squares = jnp.sum(at**2, axis=1)[:, None] + jnp.sum(points**2, axis=1)[None, :]
    return jnp.maximum(squares - 2 * jnp.matmul(at, points.T, precision="highest"), 0)
