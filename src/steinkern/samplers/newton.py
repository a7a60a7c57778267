"""The Stein variational Newton direction, Eq. (19)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.particles import Scored
from ..core.types import Points
from ..kernels.distance import centered_squared_distances
from ..kernels.matrix import Isotropic
from ..kernels.preconditioned import Preconditioned
from ..kernels.scalar import AbstractScalarKernel
from ..linalg.metrics import AbstractMetric, dot
from ..linalg.operators import Dense


def newton_velocity(
    kernel: AbstractScalarKernel,
    metric: AbstractMetric,
    source: Scored,
    hessians: Float[Array, "n d d"],
    damping: Any,
) -> Points:
    """H̃_i⁻¹ φ_k(x_i) for every particle, with the scalar kernel k(‖x − y‖²_Q) in the metric Q.

    φ_k is the SVGD velocity of that scalar kernel. By Eq. (14), φ_{K_Q} = Q⁻¹φ_k, so φ_k is Q times the velocity of the
    preconditioned kernel.
    """
    preconditioned = Preconditioned(Isotropic(kernel), metric).velocity(source.points, source)
    velocities = jax.vmap(metric.multiply)(preconditioned)

    def solve(matrix: Array, vector: Array) -> Array:
        return Dense(matrix).factorize(damping).solve(vector)

    return jax.vmap(solve)(newton_matrices(kernel, metric, source, hessians), velocities)


def newton_matrices(
    kernel: AbstractScalarKernel, metric: AbstractMetric, source: Scored, hessians: Float[Array, "n d d"]
) -> Float[Array, "n d d"]:
    """H̃_i = Σ_j w_j [H(x_j) k(x_j, x_i)² + ∇k ∇kᵀ], the display below Eq. (19), with n d² memory instead of n² d²."""
    n, d = source.points.shape
    whitened = jax.vmap(metric.whiten)(source.points)
    whitened = whitened - jnp.mean(whitened, axis=0, keepdims=True)
    value, derivative = kernel.profile(centered_squared_distances(whitened, whitened))
    hessian_term = dot(source.weights[None, :] * value**2, hessians.reshape(n, d * d)).reshape(n, d, d)

    # ∇k = 2k' Rᵀ(u_i − u_j). With c_ij = 4 w_j k'², Σ_j c_ij (u_i − u_j)(u_i − u_j)ᵀ expands into four products.
    weights = 4 * source.weights[None, :] * derivative**2
    outer = whitened[:, :, None] * whitened[:, None, :]
    second_moments = dot(weights, outer.reshape(n, d * d)).reshape(n, d, d)
    cross = whitened[:, :, None] * dot(weights, whitened)[:, None, :]
    gradient_term = jnp.sum(weights, axis=1)[:, None, None] * outer - cross - jnp.swapaxes(cross, 1, 2) + second_moments
    push = jax.vmap(metric.push_score)
    return hessian_term + jax.vmap(lambda matrix: push(push(matrix).T))(gradient_term)
