"""Points in the parameters' own coordinates, by one program for all callers."""

import jax
from jaxtyping import Array, Float

from ..core.programs import compiled
from ..core.types import PyTree
from .target import AbstractTarget


@compiled
def constrained(target: AbstractTarget, points: Float[Array, "... d"], batch_axes: int = 1) -> PyTree:
    """The parameters at unconstrained points, without what all particles share.

    Args:
        target: a target that is bound to a space.
        points: an array whose last axis has the coordinates.
        batch_axes: the number of the other axes.
    """
    constrain = target.bound_space.constrain
    for _ in range(batch_axes):
        constrain = jax.vmap(constrain)
    return constrain(points)
