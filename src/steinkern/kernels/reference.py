"""The paper's definitions, slow and direct. Fast forms are tested against them, and `UserKernel` uses them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.particles import Scored
from ..core.types import Matrix, Vector


def stein_velocity(
    kernel: Callable[[Vector, Vector], Matrix], at: Float[Array, "m d"], source: Scored
) -> Float[Array, "m d"]:
    """φ(x) = Σ_j w_j [K(x, y_j) s_j + K(x, y_j)∇], Eqs. (9) and (10), by automatic differentiation of K.

    (K∇)_l = Σ_m ∂K_lm(x, y)/∂y_m.
    """

    def pair(x: Vector, y: Vector, score: Vector) -> Vector:
        derivative = jax.jacfwd(kernel, argnums=1)(x, y)  # l m c: ∂K_lm / ∂y_c
        return jnp.matmul(kernel(x, y), score, precision="highest") + jnp.einsum("lmm->l", derivative)

    def one(x: Vector) -> Vector:
        each = jax.vmap(pair, (None, 0, 0))(x, source.points, source.scores)
        return jnp.einsum("n,nd->d", source.weights, each, precision="highest")

    return jax.vmap(one)(at)


def divergence(
    velocity: Callable[[Float[Array, "m d"]], Float[Array, "m d"]], at: Float[Array, "m d"]
) -> Float[Array, " m"]:
    """∇·φ at every row of `at`, by automatic differentiation of the velocity."""

    def one(x: Vector) -> Array:
        return jnp.trace(jax.jacfwd(lambda point: velocity(point[None, :])[0])(x))

    return jax.vmap(one)(at)
