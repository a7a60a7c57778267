"""Samplers with BlackJAX's interface, `init` and `step`, for loops written for that library."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.random as jr

from ..core.arrays import as_arrays, as_data, as_key
from ..core.particles import check_particles
from ..core.types import Batch, KeyLike, LogDensityFunction, PyTree, is_concrete
from ..samplers.sampler import AbstractSampler, Info
from ..targets.target import AbstractTarget, BoundTarget, as_target


class SamplingAlgorithm(NamedTuple):
    """BlackJAX's interface: `init(position)` returns a state, `step(key, state)` the next state and its info."""

    init: Callable[..., "ParticleState"]
    step: Callable[[KeyLike, "ParticleState"], tuple["ParticleState", Info]]


class ParticleState(NamedTuple):
    """The particles, and the sampler's state in `inner`."""

    position: PyTree
    """The particles in constrained coordinates, with a leading particle axis."""
    inner: Any


def as_blackjax(
    target: AbstractTarget | LogDensityFunction,
    sampler: Any,
    data: Batch = None,
    *,
    batch_size: int | None = None,
) -> SamplingAlgorithm:
    """A sampler on a target as a BlackJAX sampling algorithm; BlackJAX itself is not needed.

    ```python
    algorithm = steinkern.as_blackjax(log_density, steinkern.svgd())
    state = algorithm.init(particles)
    state, info = jax.jit(algorithm.step)(key, state)      # state.position are the particles
    ```

    `blackjax.util.run_inference_algorithm` accepts it. Steps with the keys `fold_in(key, t)` for t = 0, 1, … are those
    of `fit(key, ...)`. Unlike `fit`, these steps do not check for numbers that are not finite.

    Args:
        target: as for `fit`.
        sampler: such as `svgd()`.
        data: as for `fit`. They are constants of the compiled step, so new data need a new compilation.
        batch_size: as for `fit`.
    """
    if not isinstance(sampler, AbstractSampler):
        raise ValueError(f"`sampler` must be a sampler such as `steinkern.svgd()`, got {sampler!r}.")
    unbound = as_target(target)
    rows = as_data(data)
    unbound.check_data(rows, batch_size)

    def bind(position: PyTree) -> BoundTarget:
        return unbound.bind(jax.tree.map(lambda leaf: leaf[0], position))

    def init(position: PyTree, rng_key: Any = None) -> ParticleState:
        """The state before the first step; `rng_key`, which BlackJAX's loops pass, is not used."""
        if all(map(is_concrete, jax.tree.leaves(position))):
            check_particles(position, "position")
        position = as_arrays("position", position)
        bound = bind(position)
        points = jax.vmap(bound.space.unconstrain)(position)
        return ParticleState(position, sampler.init(bound, points, bound.batch(rows, batch_size)))

    def step(rng_key: KeyLike, state: ParticleState) -> tuple[ParticleState, Info]:
        """One step of the sampler, on a new minibatch if `batch_size` is set."""
        bound = bind(state.position)
        batch_key, sampler_key = jr.split(as_key(rng_key, "rng_key"))
        inner, info = sampler.step(sampler_key, state.inner, bound, bound.batch(rows, batch_size, batch_key))
        return ParticleState(jax.vmap(bound.space.constrain)(inner.points), inner), info

    return SamplingAlgorithm(init, step)
