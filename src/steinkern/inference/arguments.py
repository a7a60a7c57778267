"""Checks of the arguments of `fit`; errors name the argument, the expected value and the one given."""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.types import check_callable, check_count, check_positive_number
from ..samplers.sampler import AbstractSampler


def check_functions(sampler: Any, tempering: Any, callback: Any) -> None:
    """Raise unless `sampler` is a sampler and the others are functions, or each of them is `None`."""
    if sampler is not None and not isinstance(sampler, AbstractSampler):
        raise ValueError(f"`sampler` must be a sampler such as `steinkern.svgd()`, got {sampler!r}.")
    for name, function, what in (
        ("callback", callback, "a function of (step, state, info)"),
        ("tempering", tempering, "a schedule, a function of the step"),
    ):
        if function is not None:
            check_callable(name, function, what)


def check_start(
    sampler: Any, particles: Any, start: Any, num_particles: Any, num_steps: Any, mesh: Any, tempering: Any
) -> None:
    """Raise unless the arguments say where a run begins, and how long it is where they name a sampler."""
    if particles is not None and (start is not None or num_particles is not None):
        other = "start" if start is not None else "num_particles"
        raise ValueError(
            f"`particles` and `{other}` exclude each other, got both: give particles, or one particle's parameters as "
            "`start` with `num_particles`."
        )
    if sampler is not None and num_steps is None:
        raise ValueError("`num_steps` is missing: a fit with a sampler needs the number of steps to take.")
    for name, value in (("mesh", mesh), ("tempering", tempering)):
        if sampler is None and value is not None:
            raise ValueError(
                f"`{name}` needs a `sampler`: without one, particles start around the target itself, and chains on one "
                f"device check them. Give a sampler such as `steinkern.svgd()`, or leave `{name}` out."
            )


def as_count(name: str, value: Any) -> int:
    """A number of steps or examples as an `int`, from an integer of Python or NumPy."""
    check_count(name, value)
    return int(value)


def as_positive(name: str, value: Any) -> float:
    """A positive number as a `float`, so that 100 and 100.0 identify the same run."""
    check_positive_number(name, value)
    return float(value)


def as_bool(name: str, value: Any) -> bool:
    """A strict bool; strings and arrays are rejected."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def as_tolerance(tolerance: Any, sampler: AbstractSampler) -> float:
    """The tolerance as a fraction below 1; refused for samplers whose particles do not come to rest."""
    fraction = as_positive("tolerance", tolerance)
    if fraction >= 1:
        raise ValueError(f"`tolerance` must be a fraction of the largest velocity, below 1, got {tolerance}.")
    if not sampler.traits.deterministic:
        raise ValueError(
            f"`tolerance` has no meaning for {type(sampler).__name__}, whose velocity does not show convergence. "
            "Leave it out and choose `num_steps`."
        )
    return fraction


def check_checkpoint(checkpoint: Any, checkpoint_every: Any) -> None:
    """Raise unless `checkpoint` can name a directory; `checkpoint_every` needs a `checkpoint`."""
    if checkpoint is not None and not (isinstance(checkpoint, str | os.PathLike) and os.fspath(checkpoint)):
        raise ValueError(f"`checkpoint` must be a directory, got {checkpoint!r}. Name one, such as 'runs/first'.")
    if checkpoint is None and checkpoint_every is not None:
        raise ValueError(
            f"`checkpoint_every` is {checkpoint_every}, but there is no `checkpoint`: name a directory for them."
        )


def check_tempering(tempering: Callable[[Any], Any] | None, first: int, num_steps: int) -> None:
    """Raise unless the schedule gives a valid power at its first and last step; others are not checked."""
    if tempering is None:
        return
    shape = jax.eval_shape(tempering, jax.ShapeDtypeStruct((), jnp.int32))
    if getattr(shape, "shape", None) != () or not (jnp.isdtype(shape.dtype, ("real floating", "integral"))):
        raise ValueError(f"`tempering` must return one real number, the power of the target, got {shape}.")
    for step in {first, first + num_steps - 1}:
        power = float(tempering(jnp.asarray(step, jnp.int32)))
        if not 0 <= power < np.inf:
            raise ValueError(
                f"`tempering` must return a finite power of at least 0, got {power} at step {step}. A negative one "
                "would turn the target upside down."
            )
