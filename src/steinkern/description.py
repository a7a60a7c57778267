"""What a run was made from, as JSON that can be compared: numbers in full, arrays and functions by a digest."""

import functools
import hashlib
import types
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .digest import digest_of, methods_of
from .hosts import on_host

CODE = "its code"
"""The name under which a description holds the digest of a function's code; no name that a user can give."""
_DERIVATIVES = ("jvp", "fwd", "bwd")  # where JAX keeps a function's own rules


def described(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """`value` as JSON, equal for equal values in another process.

    Modules, dataclasses and containers are taken apart. A function is its name, what it closes over (an optax optimiser
    keeps its learning rate there) and a digest of its code. What cannot be taken apart is its type.

    Args:
        value: what to describe.
        inside: the identities of what it lies in, so that a function that closes over itself comes to an end.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if id(value) in inside:
        return "itself"
    inside = inside | {id(value)}
    inner = functools.partial(described, inside=inside)
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return _array(value)
    if isinstance(value, functools.partial):
        return {"function": inner(value.func), "arguments": inner(value.args), "options": inner(value.keywords)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"class": _name(type(value)), **{name: inner(getattr(value, name)) for name in value._fields}}
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: inner(getattr(value, field.name, None)) for field in fields(value)}
        methods = {name: _digested(method, inside) for name, method in methods_of(type(value)).items()}
        return {"class": _name(type(value)), **own, **({CODE: methods} if methods else {})}
    if isinstance(value, dict):
        return {str(key): inner(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [inner(entry) for entry in value]
    if isinstance(value, types.MethodType):
        return {"function": inner(value.__func__), "of": inner(value.__self__)}
    if hasattr(value, "__wrapped__"):  # jitted, or with a derivative of its own
        rules = {name: inner(getattr(value, name)) for name in _DERIVATIVES if hasattr(value, name)}
        return {"function": inner(value.__wrapped__), **rules} if rules else inner(value.__wrapped__)
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    return _name(value if isinstance(value, type | types.BuiltinFunctionType) else type(value))


def without_code(description: Any) -> Any:
    """What `described` gave, less the digests of code, which another version of Python does not share."""
    if isinstance(description, dict):
        return {key: without_code(entry) for key, entry in description.items() if key != CODE}
    return [without_code(entry) for entry in description] if isinstance(description, list) else description


def fingerprint(value: Any) -> str:
    """A digest of the shapes, types and bytes of all arrays in a pytree."""
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(value):
        array = as_numpy(leaf)
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def as_numpy(leaf: Any) -> np.ndarray:
    """An array's numbers; of a PRNG key, those behind it."""
    if is_key(leaf):
        return np.asarray(jr.key_data(leaf))
    return on_host(leaf)


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _array(value: Any) -> Any:
    array = as_numpy(value)
    if array.ndim == 0:
        return described(array.item() if array.dtype.kind in "biuf" else float(array))
    return f"{array.dtype.name}{list(array.shape)} {fingerprint(array)}"


def _function(function: types.FunctionType, inside: frozenset[int]) -> Any:
    name = f"{function.__module__}.{function.__qualname__}"
    closed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    code = _digested(function, inside)
    return {
        "function": name,
        **({} if code is None else {CODE: code}),
        **{key: _cell(cell, inside) for key, cell in closed.items()},
    }


def _digested(function: types.FunctionType, inside: frozenset[int]) -> str | None:
    return digest_of(function, functools.partial(described, inside=inside))


def _cell(cell: Any, inside: frozenset[int]) -> Any:
    try:
        return described(cell.cell_contents, inside)
    except ValueError:  # not yet filled
        return "empty"


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', None) or 'builtins'}.{thing.__qualname__}"
