"""A function rebuilt on copies of the NumPy arrays that it closes over.

JAX (0.10 to 0.12) remembers its version of a NumPy array by the array's identity, without regard to the precision in
force: once a program traced in double precision holds a closed-over array, that array is int64 or float64 to every
thread, and one that a program in single precision holds is float32 where double precision is asked for. `sample` traces
the target in double precision within a program that may not use it. It therefore traces a copy of the target whose
64-bit arrays are copies: no array of the caller's is met in double precision, and none comes rounded.

Arrays are reached through closures, globals, defaults, partial arguments, methods, attributes of objects, classes and
modules, containers, and through what `jit`, `vmap` or `custom_vjp` wrap. Everything that does not lead to an array is
shared with the original, not copied.
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

_MOST_KEPT = 32  # rebuilt functions that are remembered


def on_copied_arrays(thing: T) -> T:
    """`thing`, a function or an object that holds functions, on copies of all 64-bit NumPy arrays that it reaches.

    Called again for the same functions, with arrays of the same contents, it returns the same copies of them, so that
    JAX finds what it has compiled.
    """
    if package_of(type(thing)) == "steinkern":  # a target, made anew for every call: part by part
        parts = {name: on_copied_arrays(part) for name, part in vars(thing).items()}
        changed = {name: part for name, part in parts.items() if part is not vars(thing)[name]}
        if not changed:
            return thing
        new = copy.copy(thing)
        for name, part in changed.items():
            object.__setattr__(new, name, part)
        return new
    if is_wide_array(thing):
        return np.array(thing)  # type: ignore[return-value]
    graph = Graph()
    root = graph.add(thing)
    leading = graph.leading_to_arrays()
    if root not in leading:
        return thing
    made = rebuild(leading, _kept.find(leading))
    _kept.add(leading, made)
    return made[root]


class _Kept:
    """Copies of functions, objects and arrays, for as long as the originals live and the arrays do not change."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, tuple[list[Any], dict[int, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, leading: dict[int, Node]) -> dict[int, Any]:
        """The copies made of the same objects before; none where an array, or a number beside it, has changed since."""
        with self._lock:
            _, made = self._entries.get(_signature(leading), ([], {}))
        arrays = [(node.thing, own) for own, node in leading.items() if isinstance(node.thing, np.ndarray)]
        return made if all(own in made and _same(array, made[own]) for array, own in arrays) else {}

    def add(self, leading: dict[int, Node], made: dict[int, Any]) -> None:
        """Keep what has been made; it is let go as soon as one of the originals is."""
        name = _signature(leading)
        lasting = [own for own, node in leading.items() if _lasts(node.thing)]

        def forget(_: Any) -> None:
            self._entries.pop(name, None)  # one operation, without the lock: it may come at any moment

        originals = [weakref.ref(leading[own].thing, forget) for own in lasting]
        with self._lock:
            self._entries[name] = originals, {own: made[own] for own in lasting}
            self._entries.move_to_end(name)
            while len(self._entries) > _MOST_KEPT:
                self._entries.popitem(last=False)


_kept = _Kept()


def _lasts(thing: Any) -> bool:
    """Whether an object has an identity of its own that can be watched, unlike containers."""
    if isinstance(thing, types.MethodType | dict | list | tuple):
        return False
    return type(thing).__weakrefoffset__ != 0  # negative from Python 3.12 on


def _signature(leading: dict[int, Node]) -> tuple[Any, ...]:
    """Equal for the same objects, with the same numbers and texts beside their arrays."""
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
    """A callable object whose class cannot be rebuilt, as the method that it is called by."""
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
