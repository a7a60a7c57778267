"""The first stage: from the parameters of one particle to chains at draws of the Gaussian nearest to the target."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.errors import explain_errors, shapes
from ...core.messages import Notice
from ...core.particles import Layout
from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree
from ...samplers.hamiltonian import ChainState, Hamiltonian
from ...targets.target import AbstractTarget, BoundTarget
from .evaluation import Cloud, Evaluator
from .gaussian import Gaussian, nearest_gaussian
from .properness import no_mass_found
from .randomness import even_noise
from .second_component import SecondComponent, find_second_component

CHAINS = 100
"""The number of points in a cloud, and the least number of chains."""
_PARTICLES_A_CHAIN = 10  # there are more than 100 chains for more than 1,000 particles


def bind(target: AbstractTarget, start: PyTree, data: Batch) -> tuple[BoundTarget, PyTree, Batch]:
    """The target bound to its space, and start and data in JAX's default precision."""
    precision = jnp.result_type(float)

    def cast(leaf: Any) -> Array:
        other = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != precision
        return jax.device_put(np.asarray(leaf, precision) if other else leaf)

    start, data = jax.tree.map(cast, start), jax.tree.map(cast, data)
    return target.bind(start), start, data


def in_shapes(start: PyTree, data: Batch) -> tuple[str, str]:
    """The two texts of `explain_errors`: what the target must accept, and a likely mistake."""
    and_data = "" if data is None else f", and `data`, {shapes(data, 0)}"
    return f"`target` must take `start`, {shapes(start, 0)}{and_data}", "Was it written for other names or shapes?"


@dataclass(frozen=True)
class Start:
    """The nearest Gaussian, and the initial state of the chains."""

    names: list[str]
    """The names of the coordinates."""
    vector: np.ndarray
    """The caller's start, in unconstrained coordinates."""
    nearest: Gaussian
    chains: ChainState
    other: SecondComponent | None
    """Mass that these chains may not reach; `None` where none was found."""
    spent: np.ndarray
    """The numbers of values, gradients, Hessians and sequential batches."""
    problem: Notice | None
    """Why no Gaussian was found; `None` where one was."""


def find_start(
    random: np.random.Generator, target: BoundTarget, starts: Iterable[PyTree], data: Batch, num_particles: int
) -> Start:
    """Fit the nearest Gaussian, look for mass that it misses, and start chains at its draws.

    Args:
        random: the generator of the clouds of points and of the chains' initial points.
        target: bound to its space.
        starts: candidates, each the parameters of one particle in constrained coordinates; the first at which the log
            density and its gradient are finite is used.
        data: the full data.
        num_particles: the number of particles, which determines the number of chains.

    Raises:
        ValueError: the log density or its gradient is not finite at any of the starts.
    """
    d = target.space.layout.size
    noise = even_noise(random, CHAINS, d)
    for start in starts:
        evaluator = Evaluator(target, start, noise, data)
        with explain_errors(*in_shapes(start, data)):
            vector = evaluator.unconstrained_start()
            first, _ = evaluator.derivatives(np.broadcast_to(vector, noise.shape))
        if np.isfinite(first.log_densities[0]) and np.isfinite(first.scores[0]).all():
            break
    else:
        raise ValueError(
            "`start` must lie where the log density and its gradient are finite, got "
            f"{float(first.log_densities[0])} there. Start inside the support, or declare it with `support=`."
        )
    names = _names(start, d)
    nearest, cloud = nearest_gaussian(evaluator, vector)
    problem = no_mass_found(evaluator, nearest, vector, names)
    other = None if problem else find_second_component(evaluator, nearest)
    spent, number = evaluator.spent, num_chains(num_particles)
    dtype = jax.tree.leaves(start)[0].dtype
    if number == CHAINS or problem:
        chains = _at_cloud(cloud, dtype)
    else:
        points = nearest.cloud(random.standard_normal((number, d))).astype(dtype)
        chains, spent = _begin(target, jax.device_put(points), data), spent + np.array([0, number, 0, 1])
    return Start(names, vector, nearest, chains if problem else _inside(chains), other, spent, problem)


def num_chains(num_particles: int) -> int:
    """The number of chains for a number of particles."""
    return max(CHAINS, -(-num_particles // _PARTICLES_A_CHAIN))


def _at_cloud(cloud: Cloud, dtype: np.dtype) -> ChainState:
    """Chains that start at the points of an evaluated cloud."""
    floating = (*cloud, np.zeros(len(cloud.points)))
    with np.errstate(over="ignore"):
        arrays = [array.astype(dtype) for array in floating]
    return ChainState(*jax.device_put([*arrays, np.int32(0), np.int32(0)]))


@compiled
def _begin(target: BoundTarget, points: Points, data: Batch) -> ChainState:
    return Hamiltonian.init(target, points, data)


def _inside(state: ChainState) -> ChainState:
    """Move chains that start where the density is not finite to the points of other chains."""
    good = np.isfinite(state.log_densities) & np.isfinite(state.scores).all(axis=1)
    if good.all():
        return state
    if not good.any():
        raise ValueError("`start` leads to where the log density or its gradient is not finite. Start elsewhere.")
    places, others = np.arange(len(good)), np.flatnonzero(good)
    rows = np.where(good, places, others[places % len(others)])
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[rows]) if leaf.ndim else leaf, state)


def _names(start: PyTree, d: int) -> list[str]:
    """The names of the coordinates; numbers where there are fewer unconstrained than constrained coordinates."""
    names = list(Layout.of(start).coordinate_names())
    return names if len(names) == d else [f"coordinate {i}" for i in range(d)]
