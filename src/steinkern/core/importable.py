"""Functions that another process can import by their name, and those that it cannot."""

import dataclasses
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from .types import calling_module

_TAKE_CLOSURES = ("copy", "cloudpickle", "dill")  # modules that copy or write functions whole


def local_functions(value: Any, seen: set[int] | None = None) -> Iterator[str]:
    """The names of the functions inside a value that another process cannot import, such as lambdas.

    Dataclasses, containers, partial functions and bound methods are searched.
    """
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType) or hasattr(value, "__wrapped__"):
        # A jitted function is an object of its own, which is never written by its name.
        if not isinstance(value, types.FunctionType) or not _is_importable(value):
            yield f"{value.__module__}.{value.__qualname__}"
        return
    for entry in _entries(value):
        yield from local_functions(entry, seen)


def _entries(value: Any) -> list[Any]:
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if type(value).__module__.partition(".")[0] == "steinkern":  # the functions of a PyMC model
        return list(getattr(value, "__dict__", {}).values())
    return []


def _is_importable(function: types.FunctionType) -> bool:
    owner: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        owner = getattr(owner, name, None)
    return owner is function


def caller_takes_closures() -> bool:
    """Whether the caller can copy or serialise functions by value: `copy`, cloudpickle or dill."""
    module = calling_module()
    return any(part in _TAKE_CLOSURES for part in module.split("."))
