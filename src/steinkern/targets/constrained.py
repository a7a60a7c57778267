"""Constrained coordinates of points, by one program for all callers."""

import jax
from jaxtyping import Array, Float

from ..core.programs import compiled
from ..core.types import PyTree
from .target import BoundTarget


@compiled
def constrained(target: BoundTarget, points: Float[Array, "... d"], batch_axes: int = 1) -> PyTree:
    """The parameters at unconstrained points, without the shared ones.

    Args:
        target: a target that is bound to a space.
        points: an array whose last axis is the coordinates.
        batch_axes: the number of leading axes.
    """
    constrain = target.space.constrain
    for _ in range(batch_axes):
        constrain = jax.vmap(constrain)
    return constrain(points)
