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
        fields = {field: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        shown = [f"{field.name}={one_line(entry)}" for field, entry in fields.items() if _is_shown(field, entry)]
        return f"{type(value).__name__}({', '.join(shown)})"
    match value:
        case np.ndarray() | np.generic() | jax.Array():
            return f"{np.asarray(value).item():.4g}" if _is_number(value) else f"{value.dtype.name}{list(value.shape)}"
        case tuple() if hasattr(value, "_fields"):  # optax's transformations hold functions only
            return "<optax>" if type(value).__module__.startswith("optax") else f"<{type(value).__name__}>"
        case functools.partial():
            return one_line(value.func)
        case dict():
            return "{" + ", ".join(f"{key!r}: {one_line(entry)}" for key, entry in value.items()) + "}"
        case list():
            return f"[{', '.join(map(one_line, value))}]"
        case tuple():
            return f"({', '.join(map(one_line, value))}{',' if len(value) == 1 else ''})"
        case float():
            return f"{value:.4g}"
    if callable(value) and hasattr(value, "__name__"):
        return "a function" if value.__name__ == "<lambda>" else value.__name__
    return repr(value)


def _is_number(value: Any) -> bool:
    return (
        value.ndim == 0 and getattr(value.dtype, "kind", "") in tuple("fiub") and not isinstance(value, jax.core.Tracer)
    )


def _is_shown(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a field is an argument whose value reads differently from its default."""
    if not (field.init and field.repr):
        return False
    return field.default is dataclasses.MISSING or one_line(value) != one_line(field.default)
