"""Double precision within `sample`, whatever JAX's own switch says, and a target that is left as it was."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from .._types import Batch, Points, PyTree, Vector
from ..target import AbstractTarget
from ..wording import shapes


def bound_to(target: AbstractTarget, start: PyTree, data: Batch, wide: bool) -> tuple[AbstractTarget, Vector, Batch]:
    """The target on its space, the start as an unconstrained vector, and the data; in double precision if `wide`."""

    def cast(leaf: Any) -> Any:
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, jnp.float64 if wide and floating else None)

    start, data = jax.tree.map(cast, start), jax.tree.map(cast, data)
    start = jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(float), start)
    bound = target.bind(start)
    assert bound.space is not None
    bound.space.check(jax.tree.map(lambda leaf: leaf[None], start), "start")
    vector = bound.space.unconstrain(start)
    value, score = jax.value_and_grad(bound.log_density)(vector, data)
    if not (bool(jnp.isfinite(value)) and bool(jnp.all(jnp.isfinite(score)))):
        raise ValueError(
            f"`start` must lie where the log density and its gradient are finite, got {float(value)} there. Start "
            "inside the support, or declare it with `support=`."
        )
    return bound, vector, data


@contextmanager
def double_precision(target: AbstractTarget, start: PyTree, data: Batch) -> Iterator[bool]:
    """Double precision within, and whether it is: not where the log density insists on single precision."""
    if jnp.zeros(()).dtype == jnp.float64:  # the caller's own choice
        yield True
        return
    error = _error_in_double(target, start, data)
    if isinstance(
        error, TypeError
    ):  # JAX may remember whole numbers as those of single precision, see `forget_precision`
        jax.clear_caches()
        error = _error_in_double(target, start, data)
    wide = error is None
    inside: AbstractContextManager[Any] = jax.enable_x64(True) if wide else contextlib.nullcontext()
    with inside:
        yield wide


def _error_in_double(target: AbstractTarget, start: PyTree, data: Batch) -> Exception | None:
    with jax.enable_x64(True):
        try:
            bound_to(target, start, data, True)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            return error
    return None


def in_shapes(start: PyTree, data: Batch) -> tuple[str, str]:
    """What the target must take, and what to ask oneself where it does not: see `explained`."""
    given = "" if data is None else f", and `data`, {shapes(data, 0)}"
    return f"`target` must take `start`, {shapes(start, 0)}{given}", "Was it written for other names or shapes?"


def forget_precision(target: AbstractTarget, points: Points, data: Batch) -> None:
    """Make the target usable in JAX's own precision again.

    JAX (0.10 to 0.12) remembers whole numbers in NumPy arrays that a function closes over by the precision in which it
    met them first. Where that was double precision, and is no longer, all that it remembers has to go.
    """
    try:
        jax.eval_shape(target.score, points[0], data)
    except TypeError:
        jax.clear_caches()
