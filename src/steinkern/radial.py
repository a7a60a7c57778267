"""The one hot loop: the radial velocity of weighted, scored points.

Every kernel of the paper is a change of variables around it (see `matrix_kernel`), so this is the only place that has
to be fast.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .distance import central, centred_squared_distances
from .particles import Scored
from .scalar_kernel import AbstractScalarKernel


def radial_velocity(kernel: AbstractScalarKernel, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
    """φ(x) = Σ_j w_j [k(r²) s_j − 2 k'(r²) (x − y_j)] with r = ‖x − y_j‖, for every row x of `at`.

    This is Eq. (5) with general weights: the second term is ∇_y k, the repulsion.
    """
    # The velocity depends on differences alone; centring keeps their digits in the products below.
    centre = central(source.points)
    at, points = at - centre, source.points - centre
    weights = source.weights[:, None]
    r2 = centred_squared_distances(at, points)
    slope = kernel.constant_slope(r2.dtype)
    value, derivative = kernel.profile(r2)
    if slope is not None:  # k' = slope × k, so drive and repulsion share one matrix product
        drive = _dot(value, weights * (source.scores + 2 * slope * points))
        return drive - 2 * slope * _dot(value, source.weights)[:, None] * at
    drive = _dot(value, weights * source.scores) + 2 * _dot(derivative, weights * points)
    return drive - 2 * _dot(derivative, source.weights)[:, None] * at


def radial_divergence(kernel: AbstractScalarKernel, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
    """∇·φ(x) = Σ_j w_j [2k'(r²) (x − y_j)·s_j − 2d k'(r²) − 4r² k''(r²)], for every row x of `at`."""
    dimension = at.shape[1]
    centre = central(source.points)
    at, points = at - centre, source.points - centre
    r2 = centred_squared_distances(at, points)
    _, derivative = kernel.profile(r2)
    along = _dot(at, source.scores.T) - jnp.sum(points * source.scores, axis=1)[None, :]
    each = 2 * derivative * (along - dimension) - 4 * r2 * kernel.second_derivative(r2)
    return _dot(each, source.weights)


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
