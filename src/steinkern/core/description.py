"""JSON descriptions of a run's inputs, for reports and for naming what differs between two runs.

A description is for people: a function appears by its name and the variables that it closes over. `identity` compares
what functions compute.
"""

import functools
import hashlib
import sys
import types
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .multihost import on_host


def describe(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """`value` as JSON, equal for equal values in another process.

    Modules, dataclasses and containers are described field by field. A function becomes its name and the variables
    that it closes over (an optax optimiser keeps its learning rate there). An object of another class becomes its
    class and its plain attributes.

    Args:
        value: what to describe.
        inside: the `id` of every enclosing object, which ends the recursion for a function that closes over itself.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, complex | bytes | range):
        return repr(value)
    if id(value) in inside:
        return "itself"
    inside = inside | {id(value)}
    inner = functools.partial(describe, inside=inside)
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return _array(value, inside)
    if isinstance(value, functools.partial):
        return {"function": inner(value.func), "arguments": inner(value.args), "options": inner(value.keywords)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"class": _name(type(value)), **{name: inner(getattr(value, name)) for name in value._fields}}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "class": _name(type(value)),
            **{field.name: inner(getattr(value, field.name, None)) for field in fields(value)},
        }
    if isinstance(value, dict):
        return {str(key): inner(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [inner(entry) for entry in value]
    if isinstance(value, set | frozenset):  # the order of a set differs between processes
        return sorted((inner(entry) for entry in value), key=repr)
    if isinstance(value, types.MethodType):
        return {"function": inner(value.__func__), "of": inner(value.__self__)}
    if hasattr(value, "__wrapped__"):  # jitted, with a custom derivative, or inside a decorator
        return inner(value.__wrapped__)
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if isinstance(value, type | types.BuiltinFunctionType):
        return _name(value)
    return _object(value, inside)


def fingerprint(value: Any) -> str:
    """A SHA-256 digest, 16 hex digits, of the shapes, dtypes and bytes of all arrays in a pytree."""
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(value):
        array = as_numpy(leaf)
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def as_numpy(leaf: Any) -> np.ndarray:
    """An array as NumPy; for a PRNG key, its key data."""
    if is_key(leaf):
        return np.asarray(jr.key_data(leaf))
    return on_host(leaf)


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _array(value: Any, inside: frozenset[int]) -> Any:
    array = as_numpy(value)
    if array.dtype.hasobject:  # the bytes of such an array are addresses
        return describe(array.tolist(), inside)
    if array.ndim == 0:
        return describe(float(array) if array.dtype.kind == "V" and not array.dtype.fields else array.item())
    return f"{array.dtype.name}{list(array.shape)} {fingerprint(array)}"


def _function(function: types.FunctionType, inside: frozenset[int]) -> Any:
    closed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return {"function": _name(function), **{key: _cell(cell, inside) for key, cell in closed.items()}}


def _object(value: Any, inside: frozenset[int]) -> Any:
    """An object of an unknown class: only its plain attributes, since others may be large or refer back to it."""
    plain = bool | int | float | complex | str | bytes | np.generic
    own = {
        name: describe(entry, inside)
        for name, entry in getattr(value, "__dict__", {}).items()
        if isinstance(entry, plain)
    }
    return {"class": _name(type(value)), **own} if own else _name(type(value))


def _cell(cell: Any, inside: frozenset[int]) -> Any:
    try:
        return describe(cell.cell_contents, inside)
    except ValueError:  # the cell is empty
        return "empty"


def _name(thing: Any) -> str:
    """Module and name. Public names of `steinkern` are independent of the module that defines them."""
    module = getattr(thing, "__module__", None) or "builtins"
    package = module.partition(".")[0]
    public = package == "steinkern" and getattr(sys.modules[package], thing.__qualname__, None) is thing
    return f"{package if public else module}.{thing.__qualname__}"
