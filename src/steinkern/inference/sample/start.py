"""The first stage: the Gaussian nearest to the target, from the parameters of one particle, and mass that it misses."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.errors import shapes
from ...core.messages import Notice
from ...core.programs import compiled_quickly
from ...core.types import Batch, PyTree, Vector
from ...targets.target import AbstractTarget, BoundTarget
from .evaluation import Cloud, Evaluator
from .gaussian import Gaussian, nearest_gaussian
from .properness import no_mass_found
from .second_component import SecondComponent, find_second_component

CHAINS = 100
"""The number of points in a cloud, and the least number of chains."""


def bind(target: AbstractTarget, particle: PyTree, data: Batch) -> tuple[BoundTarget, Batch]:
    """The target bound to the space of one particle, and the data, in JAX's default precision."""
    particle = in_default_precision(particle)
    bound = target.bind(particle)
    bound.space.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], particle), "start")
    return bound, in_default_precision(data)


def in_default_precision(tree: PyTree) -> PyTree:
    """Floating-point leaves in JAX's default precision, other leaves as they are."""
    precision = jnp.result_type(float)

    def cast(leaf: Any) -> Array:
        other = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != precision
        return jax.device_put(np.asarray(leaf, precision) if other else leaf)

    return jax.tree.map(cast, tree)


def in_shapes(start: PyTree, data: Batch) -> tuple[str, str]:
    """The two texts of `explain_errors`: what the target must accept, and a likely mistake."""
    and_data = "" if data is None else f", and `data`, {shapes(data, 0)}"
    return f"`target` must take `start`, {shapes(start, 0)}{and_data}", "Was it written for other names or shapes?"


class Start(NamedTuple):
    """The nearest Gaussian."""

    vector: np.ndarray
    """The first candidate with a finite density, in unconstrained coordinates."""
    nearest: Gaussian
    cloud: Cloud
    """Points of the Gaussian."""
    other: SecondComponent | None
    """Mass that chains from these points may not reach; `None` where none was found."""
    problem: Notice | None
    """Why no Gaussian was found; `None` where one was."""


def find_start(evaluator: Evaluator, starts: Iterable[PyTree]) -> Start:
    """Fit the nearest Gaussian and look for mass that it misses.

    Args:
        evaluator: of the target.
        starts: candidates, each the parameters of one particle in constrained coordinates; the first at which the log
            density and its gradient are finite is used.

    Raises:
        ValueError: the log density or its gradient is not finite at any of the starts.
    """
    for start in starts:
        vector = np.asarray(_unconstrain(evaluator.target, in_default_precision(start)), np.float64)
        first, _ = evaluator.derivatives(np.broadcast_to(vector, evaluator.noise.shape))
        if np.isfinite(first.log_densities[0]) and np.isfinite(first.scores[0]).all():
            break
    else:
        raise ValueError(
            "`start` must lie where the log density and its gradient are finite, got "
            f"{float(first.log_densities[0])} there. Start inside the support, or declare it with `support=`."
        )
    nearest, cloud = nearest_gaussian(evaluator, vector)
    problem = no_mass_found(evaluator, nearest, vector)
    other = None if problem else find_second_component(evaluator, nearest)
    return Start(vector, nearest, cloud, other, problem)


@compiled_quickly
def _unconstrain(target: BoundTarget, start: PyTree) -> Vector:
    return target.space.unconstrain(start)
