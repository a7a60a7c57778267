"""Runs of a sampler on minibatches as one pure function, so that many trials and settings run under one `vmap`.

`fit` is for one run at a time; an experiment runs twenty trials of a dozen settings.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Integer

from steinkern.core.types import Batch, Key, Points
from steinkern.samplers.sampler import AbstractSampler
from steinkern.targets.target import BoundTarget

from .methods import Setting, with_numbers


def measured_run(
    key: Key,
    sampler: AbstractSampler,
    target: BoundTarget,
    points: Points,
    draw: Callable[[Key], Batch],
    checkpoints: Sequence[int] | Integer[Array, " checkpoints"],
    measure: Callable[[Points], Any],
) -> Any:
    """`measure(points)` after every number of steps in `checkpoints`, stacked along a leading axis.

    Args:
        key: the key of step t depends on it and t alone.
        sampler: what moves the particles.
        target: bound to the particles' space.
        points: the first particles, in unconstrained coordinates.
        draw: a minibatch from a key.
        checkpoints: increasing numbers of steps; they may be traced, so that runs of any length share a program.
        measure: a pytree of arrays from the particles.
    """
    counts = jnp.asarray(checkpoints, jnp.int32)
    lengths = jnp.diff(counts, prepend=jnp.zeros((1,), jnp.int32))

    def step(turn: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, count = carry
        batch_key, sampler_key = jr.split(jr.fold_in(key, count))
        state, _ = sampler.step(sampler_key, state, target, draw(batch_key))
        return state, count + 1

    def segment(carry: tuple[Any, Array], length: Array) -> tuple[tuple[Any, Array], Any]:
        carry = jax.lax.fori_loop(0, length, step, carry)
        return carry, measure(carry[0].points)

    first = (sampler.init(target, points, draw(key)), jnp.zeros((), jnp.int32))
    _, measured = jax.lax.scan(segment, first, lengths)
    return measured


def compile_trials(
    trial: Callable[[Setting, Any, Any], Any], setting: Setting, names: Sequence[str], at_once: int | None = None
) -> Callable[[Float[Array, "settings names"], Any, Any], Any]:
    """A compiled function of numbers, trials and shared arrays: `trial` for all settings and trials, stacked.

    Args:
        trial: a pytree of arrays from a setting, one entry of the trials, and what all trials share.
        setting: the choices that all settings have in common.
        names: those of its choices that are numbers, and differ.
        at_once: how many settings run under one `vmap`, the rest in turn; all by default.
    """

    @jax.jit
    def run(numbers: Float[Array, "settings names"], trials: Any, shared: Any) -> Any:
        def over_trials(row: Float[Array, " names"]) -> Any:
            return jax.vmap(lambda entry: trial(with_numbers(setting, names, row), entry, shared))(trials)

        if at_once is None:
            return jax.vmap(over_trials)(numbers)
        return jax.lax.map(over_trials, numbers, batch_size=at_once)

    return run
