"""A digest of what a function of the user's does, to tell another function of the same name from it.

Bytecode differs between versions of Python, so digests are compared within one. Functions of libraries have none: their
code is known by the library's version.
"""

import dis
import hashlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LIBRARIES = ("steinkern", "jax", "jaxlib", "equinox", "optax", "numpy", "numpyro", "pymc", "pytensor", "blackjax",
             "jaxtyping", "beartype", "functools")  # fmt: skip
_HAS_DOCSTRING = 0x4000000  # inspect.CO_HAS_DOCSTRING, from Python 3.13 on

Describe = Callable[[Any], Any]


def digest_of(function: types.FunctionType, describe: Describe) -> str | None:
    """A digest of bytecode, constants, names, defaults and global numbers, its own and of the functions that it calls.

    Comments, docstrings, line numbers and names of local variables are left out: they change nothing.

    Args:
        function: whose code to look at; `None` is the answer for a function of a library.
        describe: from a default or a global number to JSON.
    """
    if _of_library(function):
        return None
    parts: list[Any] = []
    waiting, seen = [function], {id(function)}
    while waiting:  # every function once: those that call one another by many ways would never come to an end
        one = waiting.pop(0)
        parts += [_code(one.__code__), describe(one.__defaults__), describe(one.__kwdefaults__)]
        for name in sorted(set(_globals_in(one.__code__))):
            value = _unwrapped(one.__globals__.get(name))
            if isinstance(value, bool | int | float | str | np.generic):
                parts.append((name, describe(value)))
            elif isinstance(value, types.FunctionType) and not _of_library(value) and id(value) not in seen:
                waiting.append(value)
                seen.add(id(value))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def methods_of(kind: type) -> dict[str, types.FunctionType]:
    """The functions that a class of the user's is made of, by their names."""
    found: dict[str, types.FunctionType] = {}
    for base in reversed(kind.__mro__):
        if not _of_library(base):
            for name, entry in vars(base).items():
                function = _function_in(entry)
                if function is not None and (name == "__call__" or not name.startswith("__")):
                    found[name] = function
    return found


def _function_in(entry: Any) -> types.FunctionType | None:
    """A method's function: plain, of a property, static, of a class, or as Equinox wraps it."""
    for name in ("fget", "__func__", "method"):
        entry = getattr(entry, name, entry)
    return entry if isinstance(entry, types.FunctionType) else None


def _unwrapped(value: Any) -> Any:
    """The function inside one that is jitted, or has a derivative of its own."""
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


def _of_library(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in LIBRARIES


def _code(code: types.CodeType) -> Any:
    constants = list(code.co_consts)
    if constants and isinstance(constants[0], str) and _documented(code):
        constants[0] = None
    return code.co_code.hex(), code.co_names, [_constant(constant) for constant in constants]


def _documented(code: types.CodeType) -> bool:
    """Whether the first constant, a string, is the docstring."""
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & _HAS_DOCSTRING)
    return not code.co_name.startswith("<")  # a lambda has none; of a plain function the first constant is none but it


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return [_constant(entry) for entry in value]
    if isinstance(value, frozenset):  # in an order of its own in every process
        return sorted(repr(entry) for entry in value)
    return repr(value)


def _globals_in(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_in(constant)
