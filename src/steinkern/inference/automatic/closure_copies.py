"""Copies functions and objects, with replacements for some of the objects that they refer to."""

import collections
import copy
import functools
import types
from typing import Any

import numpy as np

from .closure_graph import Node, Uses, attributes_of, names_in, wrapped_by


def rebuild(leading: dict[int, Node], made: dict[int, Any]) -> dict[int, Any]:
    """Copies of the nodes that lead to arrays, by the identity of the originals; `made` holds copies to reuse.

    Mutable objects are created first and filled afterwards, because the objects in them may refer back to them.
    """
    made, done = dict(made), set(made)
    for own, (thing, parts) in leading.items():
        if own not in done and (shell := _shell(thing, {slot for slot, part in parts.items() if part in leading})):
            made[own] = shell[0]

    def copied(own: int) -> Any:
        if own in done:
            return made[own]
        thing, parts = leading[own]
        if own in made:
            done.add(own)  # before its contents, which may refer back to it
        new = {slot: copied(part) for slot, part in parts.items() if part in leading}
        if own not in made:
            made[own] = _with_parts(thing, new)
        elif made[own] is not thing:
            _fill(thing, made[own], new)
        done.add(own)
        return made[own]

    for own in leading:
        copied(own)
    return made


def _shell(thing: Any, changing: set[Any]) -> tuple[Any] | None:
    """A copy of a mutable object, to be filled by `_fill`; `None` for immutable objects."""
    if isinstance(thing, np.ndarray):
        return (np.array(thing),)
    if isinstance(thing, types.FunctionType):
        return (_empty_function(thing, changing),)
    if isinstance(thing, dict | list | collections.deque):
        return (copy.copy(thing),)
    if isinstance(thing, Uses):
        module = types.ModuleType(thing.module.__name__)
        module.__dict__.update(vars(thing.module))
        return (module,)
    if isinstance(thing, types.MethodType | functools.partial | tuple) or wrapped_by(thing) is not None:
        return None
    try:
        if isinstance(thing, type):
            members = {"__module__": thing.__module__, "__slots__": ()}
            return (type(thing)(thing.__name__, (thing,), members),)
        return (_object_like(thing),)
    except Exception:  # the copying of a foreign class may raise anything; the object is then shared
        return (thing,)


def _object_like(thing: Any) -> Any:
    """A shallow copy of an object."""
    try:
        new = object.__new__(type(thing))
    except TypeError:  # some built-in types
        return copy.copy(thing)
    for name, part in attributes_of(thing).items():
        object.__setattr__(new, name, part)
    return new


def _empty_function(function: types.FunctionType, changing: set[Any]) -> types.FunctionType:
    """A copy of a function with empty cells, and a new dictionary of globals, where these are to be replaced."""
    cells = tuple(
        types.CellType() if ("cell", place) in changing else cell
        for place, cell in enumerate(function.__closure__ or ())
    )
    scope = function.__globals__
    if any(kind == "global" for kind, _ in changing):
        names = names_in(function.__code__) | {"__name__", "__builtins__"}
        scope = {name: scope[name] for name in names if name in scope}
    new = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    new.__kwdefaults__, new.__qualname__, new.__module__ = (
        function.__kwdefaults__, function.__qualname__, function.__module__,
    )  # fmt: skip
    new.__dict__.update(function.__dict__)
    return new


def _fill(thing: Any, shell: Any, new: dict[Any, Any]) -> None:
    """Put the copies into an object that `_shell` created."""
    if isinstance(thing, types.FunctionType):
        for (kind, place), part in new.items():
            if kind == "cell":
                shell.__closure__[place].cell_contents = part
            elif kind == "global":
                shell.__globals__[place] = part
            elif kind == "attribute":
                shell.__dict__[place] = part
            else:
                setattr(shell, place, part)
    elif isinstance(thing, dict | list | collections.deque):
        for slot, part in new.items():
            shell[slot] = part
    elif isinstance(thing, Uses):
        shell.__dict__.update(new)
    elif isinstance(thing, type):
        for name, part in new.items():
            setattr(shell, name, _as_member(thing, name, part))
    elif not isinstance(thing, np.ndarray):
        for name, part in new.items():
            object.__setattr__(shell, "__class__" if name == "class" else name, part)


def _with_parts(thing: Any, new: dict[Any, Any]) -> Any:
    """A new immutable object from copies of its contents."""
    if isinstance(thing, types.MethodType):
        return types.MethodType(new.get("function", thing.__func__), new.get("self", thing.__self__))
    if isinstance(thing, functools.partial):
        keywords = new.get("keywords", thing.keywords)
        return type(thing)(new.get("function", thing.func), *new.get("args", thing.args), **keywords)
    if isinstance(thing, tuple):
        parts = [new.get(place, part) for place, part in enumerate(thing)]
        return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
    if isinstance(thing, functools._lru_cache_wrapper):
        return functools.lru_cache(maxsize=None)(new["wrapped"])
    return new["wrapped"]  # a compiled function is traced within its caller


def _as_member(cls: type, name: str, part: Any) -> Any:
    member = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
    if isinstance(member, staticmethod | classmethod):
        return type(member)(part)
    return property(part, member.fset, member.fdel) if isinstance(member, property) else part
