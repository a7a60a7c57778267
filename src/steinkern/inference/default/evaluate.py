"""The target at particles that are drawn or chosen, by one program for the start and the end of a run."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree
from ...targets.target import AbstractTarget


@compiled
def finite_and_particles(target: AbstractTarget, points: Points, data: Batch) -> tuple[Bool[Array, " n"], PyTree]:
    """Whether density and gradient are finite at every point, and the particles there."""
    values, scores = jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, data)
    return jnp.isfinite(values) & jnp.isfinite(scores).all(axis=1), jax.vmap(target.bound_space.constrain)(points)
