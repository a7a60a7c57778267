"""Copies of functions whose closed-over NumPy arrays are copied too.

JAX (0.10 to 0.12) caches its version of a NumPy array by the identity of the array, regardless of the precision in
force. A closed-over array that was traced in double precision is then float64 (or int64) in all threads, and one that
was traced in single precision is rounded to float32 even in double precision. `sample` traces the target in double
precision in processes that otherwise use single precision. It therefore traces a copy of the target in which all 64-bit
arrays are copied, so that the caller's arrays are never cached in double precision and the copies are never rounded.

Arrays are found in closures, globals, defaults, partial arguments, methods, attributes of objects, classes and modules,
containers, and in functions wrapped by `jit`, `vmap` or `custom_vjp`. Objects that do not lead to an array are shared
with the original.
"""

import abc
import copy
import functools
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .closure_copies import rebuild
from .closure_graph import LIBRARIES, Graph, Node, is_wide_array, package_of, parts_of, wrapped_by

T = TypeVar("T")

_MOST_KEPT = 32  # the most copied functions in the cache


def on_copied_arrays(thing: T) -> T:
    """A copy of a function, or of an object that holds functions, with copies of all 64-bit NumPy arrays it refers to.

    A second call for the same functions and equal arrays returns the same copies, so that JAX reuses compiled programs.
    """
    if package_of(type(thing)) == "steinkern":  # a target, a new object in every call: field by field
        parts = {name: on_copied_arrays(part) for name, part in vars(thing).items()}
        changed = {name: part for name, part in parts.items() if part is not vars(thing)[name]}
        if not changed:
            return thing
        new = copy.copy(thing)
        for name, part in changed.items():
            object.__setattr__(new, name, part)
        return new
    if is_wide_array(thing):
        return np.array(thing)  # type: ignore[return-value]  # `thing` is an array
    graph = Graph()
    root = graph.add(thing)
    leading = graph.leading_to_arrays()
    if root not in leading:
        return thing
    made = rebuild(leading, _kept.find(leading))
    _kept.add(leading, made)
    return made[root]


class _Kept:
    """A cache of copies, valid while the originals are alive and their arrays unchanged."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, tuple[list[Any], dict[int, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, leading: dict[int, Node]) -> dict[int, Any]:
        """The cached copies of these objects; none where an array or a plain attribute has changed since."""
        with self._lock:
            _, made = self._entries.get(_signature(leading), ([], {}))
        arrays = [(node.thing, own) for own, node in leading.items() if isinstance(node.thing, np.ndarray)]
        return made if all(own in made and _same(array, made[own]) for array, own in arrays) else {}

    def add(self, leading: dict[int, Node], made: dict[int, Any]) -> None:
        """Cache copies; the entry is removed as soon as one of the originals is garbage-collected."""
        name = _signature(leading)
        lasting = [own for own, node in leading.items() if _lasts(node.thing)]

        def forget(_: Any) -> None:
            self._entries.pop(name, None)  # atomic, without the lock: the garbage collector may call it at any time

        originals = [weakref.ref(leading[own].thing, forget) for own in lasting]
        with self._lock:
            self._entries[name] = originals, {own: made[own] for own in lasting}
            self._entries.move_to_end(name)
            while len(self._entries) > _MOST_KEPT:
                self._entries.popitem(last=False)


_kept = _Kept()


def _lasts(thing: Any) -> bool:
    """Whether an object supports weak references; methods and containers are excluded."""
    if isinstance(thing, types.MethodType | dict | list | tuple):
        return False
    return type(thing).__weakrefoffset__ != 0  # negative from Python 3.12 on


def _signature(leading: dict[int, Node]) -> tuple[Any, ...]:
    """A cache key: the identities of the objects, and the numbers and strings that they hold."""
    objects = tuple(sorted(own for own, node in leading.items() if _lasts(node.thing)))
    plain = str | bytes | int | float | complex | bool | None
    beside = (
        (repr(slot), part)
        for node in leading.values()
        for slot, part in parts_of(node.thing).items()
        if isinstance(part, plain)
    )
    return objects, tuple(beside)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def as_function(thing: Callable[..., Any]) -> Callable[..., Any]:
    """A callable object whose class cannot be copied, as its bound `__call__`; other callables unchanged."""
    cls = type(thing)
    call = vars(cls).get("__call__")
    plain = (
        isinstance(thing, types.FunctionType | types.MethodType | functools.partial) or wrapped_by(thing) is not None
    )
    if (
        plain
        or type(cls) in (type, abc.ABCMeta)
        or not isinstance(call, types.FunctionType)
        or package_of(cls) in LIBRARIES
    ):
        return thing
    return types.MethodType(call, thing)
