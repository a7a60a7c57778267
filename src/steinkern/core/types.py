"""Shared type aliases, and the argument checks of the public functions."""

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from jaxtyping import Key as KeyOf

Key: TypeAlias = KeyOf[Array, ""]
KeyLike: TypeAlias = PRNGKeyArray  # a typed or a legacy key, as public functions accept it
Scalar: TypeAlias = Float[Array, ""]
Vector: TypeAlias = Float[Array, " d"]
Matrix: TypeAlias = Float[Array, "d d"]
Points: TypeAlias = Float[Array, "n d"]
PyTree: TypeAlias = Any
Batch: TypeAlias = Any
LogDensityFunction: TypeAlias = Callable[..., Array]
_LIBRARY_PACKAGES = ("steinkern", "jaxtyping", "beartype")  # the last two may wrap functions of the first


def is_concrete(value: Any) -> bool:
    """Whether `value` is not a tracer of `jit`, `vmap` or `grad`."""
    return not isinstance(value, jax.core.Tracer)


def check_positive(name: str, value: Any) -> None:
    """Raise unless every entry of `value` is positive and finite; traced values pass."""
    if is_concrete(value):
        try:
            numbers = np.asarray(value)
        except (TypeError, ValueError):  # a ragged list, or a key
            numbers = np.asarray(None)
        real = jnp.issubdtype(numbers.dtype, np.floating) or jnp.issubdtype(numbers.dtype, np.integer)
        if not real or np.ma.is_masked(value):
            raise ValueError(f"`{name}` must be a positive number, got {value!r}.")
        if not (np.all(numbers > 0) and np.all(np.isfinite(numbers))):
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def check_positive_number(name: str, value: Any) -> None:
    """Raise unless `value` is one positive and finite number; traced values pass."""
    if is_concrete(value) and not is_real_number(value):
        raise ValueError(f"`{name}` must be one positive number, got {value!r}.")
    check_positive(name, value)


def check_arguments(name: str, function: Any, number: int, hint: str) -> None:
    """Raise unless `function` can be called with `number` arguments; functions without a signature pass."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*range(number))
    except TypeError:
        wanted = "one argument" if number == 1 else f"{number} arguments"
        raise ValueError(f"`{name}` must take {wanted} here, got a function of {signature}. {hint}") from None


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")


def check_share(name: str, value: Any) -> None:
    """Raise unless `value` lies in [0, 1]."""
    if is_concrete(value) and not (is_real_number(value) and 0 <= value <= 1):
        raise ValueError(f"`{name}` must lie between 0 and 1, got {value if is_real_number(value) else repr(value)}.")


def check_callable(name: str, value: Any, what: str) -> None:
    """Raise unless `value` is callable; `what` describes the expected function."""
    if not callable(value):
        raise ValueError(f"`{name}` must be {what}, got {value!r} of type {type(value).__name__}.")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}` must be one of {listed}, got {value!r}.")


def warn_caller(warning: Warning) -> None:
    """Issue a warning at the line of the caller's code that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARY_PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


def as_number(value: Any) -> Any:
    """A Python or NumPy number as a 0-d array, so that changing it does not recompile a step.

    The array is float64; the value is cast to the precision of the particles where it is used. Anything but a real
    number (`True` included) is returned unchanged, for the check that follows.
    """
    concrete = not isinstance(value, jax.Array | np.ma.MaskedArray)
    return np.asarray(value, dtype=np.float64) if concrete and is_real_number(value) else value


def is_real_number(value: Any) -> bool:
    """Whether `value` is one real number of Python, NumPy or JAX, or a 0-d array of one; booleans are not."""
    if isinstance(value, int | float):
        return not isinstance(value, bool)
    number = getattr(value, "dtype", None) is not None and np.ndim(value) == 0
    return number and bool(jnp.issubdtype(value.dtype, np.integer) or jnp.issubdtype(value.dtype, np.floating))


def scale_number(number: Any, factor: float) -> Any:
    """`number * factor` in the type of `number`, so that no program is recompiled."""
    return number * factor if isinstance(number, jax.Array) else np.asarray(number * factor)


def cast_like(value: Any, reference: Array) -> Array:
    """`value` in the precision of `reference`."""
    return jnp.asarray(value).astype(reference.dtype)
