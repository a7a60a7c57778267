"""One-line reprs, which show the fields that differ from their defaults."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import numpy as np


class OneLine(eqx.Module):
    """A module whose repr is its class and the fields that differ from their defaults."""

    def __repr__(self) -> str:
        return one_line(self)


class ShortRepr:
    """A mixin for dataclasses with `repr=False`: arrays appear by their shape."""

    def __repr__(self) -> str:
        return one_line(self)


def one_line(value: Any) -> str:
    """A value as written in a call; arrays appear by their shape, functions by their name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if field.init and field.repr]
        entries = [(field, getattr(value, field.name, None)) for field in fields]
        shown = [f"{field.name}={one_line(entry)}" for field, entry in entries if not _is_default(field, entry)]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return f"{np.asarray(value).item():.4g}" if _is_number(value) else f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # optax's transformations hold functions only
        return "<optax>" if type(value).__module__.startswith("optax") else f"<{type(value).__name__}>"
    if isinstance(value, functools.partial):
        return one_line(value.func)
    if callable(value) and hasattr(value, "__name__"):
        return "a function" if value.__name__ == "<lambda>" else value.__name__
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {one_line(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(one_line, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _is_number(value: Any) -> bool:
    return value.ndim == 0 and value.dtype.kind in "fiub" and not isinstance(value, jax.core.Tracer)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is dataclasses.MISSING:
        return False
    if value is field.default:
        return True
    simple = bool | int | float | str | np.ndarray | np.generic
    numbers = isinstance(field.default, simple) and isinstance(value, simple) and np.ndim(value) == 0
    return bool(numbers and value == field.default)
