"""Double precision inside `sample`, whatever `jax_enable_x64` is, without effects outside."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ...core.errors import shapes
from ...core.programs import compiled
from ...core.types import Batch, PyTree, Scalar, Vector
from ...targets.target import AbstractTarget, LogDensity
from .closures import as_function, on_copied_arrays


def bind(target: AbstractTarget, start: PyTree, data: Batch, wide: bool) -> tuple[AbstractTarget, PyTree, Batch]:
    """The target bound to its space, and start and data as JAX arrays; in double precision if `wide`."""

    def cast(leaf: Any) -> Any:
        numbers = np.array(leaf)  # a copy, because JAX caches its version of an array by identity: see `closures`
        floating = jnp.issubdtype(numbers.dtype, jnp.floating)
        return jax.device_put(numbers.astype(np.float64) if wide and floating else numbers)

    def as_floating(leaf: Any) -> Any:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf if floating else jax.device_put(np.asarray(leaf, np.float64))

    start, data = jax.tree.map(cast, start), jax.tree.map(cast, data)
    start = jax.tree.map(as_floating, start)
    return target.bind(start), start, data


@compiled
def _at_start(target: AbstractTarget, start: PyTree, data: Batch) -> tuple[Scalar, Vector]:
    vector = target.bound_space.unconstrain(start).astype(jnp.result_type(float))
    return jax.value_and_grad(target.log_density)(vector, data)


@contextmanager
def double_precision(target: AbstractTarget, start: PyTree, data: Batch) -> Iterator[tuple[bool, AbstractTarget]]:
    """A context with double precision; yields whether it is in force, and the target to use inside.

    A log density that fails in double precision keeps single precision. The setting is thread-local and restored at the
    end of the block. The target inside uses copies of the arrays that it closes over, see `closures`.
    """
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:  # already enabled by the caller
        yield True, target
        return
    if isinstance(target, LogDensity):
        target = eqx.tree_at(lambda own: own.function, target, as_function(target.function), is_leaf=callable)
    copied = on_copied_arrays(target)
    wide = _runs_in_double(copied, start, data)
    inside: AbstractContextManager[Any] = jax.enable_x64(True) if wide else contextlib.nullcontext()
    with inside:
        yield wide, copied if wide else target


def _runs_in_double(target: AbstractTarget, start: PyTree, data: Batch) -> bool:
    with jax.enable_x64(True):
        try:
            _at_start.check(*bind(target, start, data, True))
        except (TypeError, ValueError, IndexError, KeyError, AssertionError, NotImplementedError):
            return False
    return True


def in_shapes(start: PyTree, data: Batch) -> tuple[str, str]:
    """The two texts of `explain_errors`: what the target must accept, and a likely mistake."""
    given = "" if data is None else f", and `data`, {shapes(data, 0)}"
    return f"`target` must take `start`, {shapes(start, 0)}{given}", "Was it written for other names or shapes?"
