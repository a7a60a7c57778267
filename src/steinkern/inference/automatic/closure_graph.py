"""The graph of objects that a function refers to by closures, globals, defaults, attributes, classes and containers."""

import abc
import collections
import functools
import sys
import types
from typing import Any, NamedTuple

import jax
import numpy as np

_MOST_OBJECTS = 100_000  # objects beyond this number are not followed
LIBRARIES = frozenset(sys.stdlib_module_names - {"__main__"}) | {
    "arviz", "beartype", "blackjax", "distrax", "equinox", "flax", "jax", "jaxlib", "jaxtyping", "matplotlib",
    "ml_dtypes", "numpy", "numpyro", "optax", "pandas", "pymc", "pytensor", "pytest", "scipy", "sklearn", "steinkern",
    "tensorflow_probability", "torch", "tqdm", "xarray",
}  # fmt: skip
"""Packages whose globals and classes hold no arrays of the caller."""
_HOLDERS = frozenset(
    {"distrax", "equinox", "flax", "functools", "jax", "jaxlib", "numpyro", "pymc", "pytensor", "steinkern"}
)
"""Libraries whose objects hold functions and arrays of the caller."""
_ATOMS = (str, bytes, int, float, complex, bool, type(None), np.generic, np.dtype, jax.Array, range, slice)


class Node(NamedTuple):
    """An object, and the identities of the objects that it refers to, by slot."""

    thing: Any
    parts: dict[Any, int]


class Graph:
    """The objects that a function refers to, by identity."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    def add(self, thing: Any) -> int:
        """Add `thing` and all objects that it refers to; returns its identity."""
        waiting = [thing]
        while waiting:
            node = waiting.pop()
            if id(node) in self.nodes:
                continue
            parts = {} if len(self.nodes) > _MOST_OBJECTS else parts_of(node)
            self.nodes[id(node)] = Node(node, {slot: id(part) for slot, part in parts.items()})
            waiting.extend(parts.values())
        return id(thing)

    def leading_to_arrays(self) -> dict[int, Node]:
        """The nodes from which a 64-bit array can be reached, the arrays included."""
        referring: dict[int, list[int]] = {}
        for own, node in self.nodes.items():
            for part in node.parts.values():
                referring.setdefault(part, []).append(own)
        waiting = [own for own, node in self.nodes.items() if is_wide_array(node.thing)]
        found: set[int] = set()
        while waiting:
            own = waiting.pop()
            if own not in found:
                found.add(own)
                waiting.extend(referring.get(own, []))
        return {own: node for own, node in self.nodes.items() if own in found}


class Uses(NamedTuple):
    """A module, restricted to the names that a function uses."""

    module: types.ModuleType
    names: frozenset[str]


def is_wide_array(thing: Any) -> bool:
    """Whether this is a NumPy array whose dtype in JAX depends on the precision in force."""
    return isinstance(thing, np.ndarray) and thing.dtype.kind in "iufc" and thing.dtype.itemsize >= 8


def package_of(thing: Any) -> str:
    """The top-level package in which a function or class was defined."""
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


def parts_of(thing: Any) -> dict[Any, Any]:
    """The objects that `thing` refers to and that may lead to an array, by slot."""
    if isinstance(thing, (*_ATOMS, np.ndarray)):
        return {}
    if isinstance(thing, types.FunctionType):
        return _parts_of_function(thing)
    if isinstance(thing, Uses):
        return _named(vars(thing.module), thing.names)
    if isinstance(thing, types.MethodType):
        return {"self": thing.__self__, "function": thing.__func__}
    if isinstance(thing, functools.partial):
        return {"function": thing.func, "args": thing.args, "keywords": thing.keywords}
    if isinstance(thing, dict):
        return dict(thing)
    if isinstance(thing, list | tuple | collections.deque):
        return dict(enumerate(thing))
    if isinstance(thing, type):
        return _parts_of_class(thing)
    if isinstance(thing, types.ModuleType):
        return {}
    if (wrapped := wrapped_by(thing)) is not None:
        return {"wrapped": wrapped}
    if package_of(type(thing)) in sys.stdlib_module_names:  # such as a namespace, whose class holds no arrays
        return attributes_of(thing)
    if package_of(type(thing)) in LIBRARIES - _HOLDERS:
        return {}
    return {"class": type(thing), **attributes_of(thing)}


def attributes_of(thing: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots included."""
    slots = [name for base in type(thing).__mro__ for name in _slots(base) if hasattr(thing, name)]
    return {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots}}


def wrapped_by(thing: Any) -> Any:
    """The function inside a compiled or caching function, which hides its closure; `None` for others."""
    if isinstance(thing, functools._lru_cache_wrapper) or type(thing).__name__ == "PjitFunction":
        return getattr(thing, "__wrapped__", None)
    return None


def _slots(cls: type) -> tuple[str, ...]:
    own = vars(cls).get("__slots__", ())
    names = (own,) if isinstance(own, str) else tuple(own)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _parts_of_function(function: types.FunctionType) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for place, cell in enumerate(function.__closure__ or ()):
        try:
            found["cell", place] = cell.cell_contents
        except ValueError:  # not yet filled
            continue
    found["own", "__defaults__"], found["own", "__kwdefaults__"] = function.__defaults__, function.__kwdefaults__
    found.update({("attribute", name): part for name, part in function.__dict__.items()})
    if package_of(function) not in LIBRARIES:
        found.update(
            {("global", name): part for name, part in _named(function.__globals__, names_in(function.__code__)).items()}
        )
    return found


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes in a function and in those that it defines."""
    inner = [names_in(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _named(namespace: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        if name not in namespace:
            continue
        part = namespace[name]
        if isinstance(part, types.ModuleType):
            if part.__name__.partition(".")[0] in LIBRARIES:
                continue
            part = _uses(part, names)
        found[name] = part
    return found


def _parts_of_class(cls: type) -> dict[Any, Any]:
    """The members of a class of the caller and of its bases, methods as plain functions."""
    if type(cls) not in (type, abc.ABCMeta):  # other metaclasses have side effects: see `as_function`
        return {}
    found: dict[Any, Any] = {}
    for base in reversed(cls.__mro__):
        if package_of(base) not in LIBRARIES:
            found.update({name: _function_in(member) for name, member in vars(base).items() if name != "__dict__"})
    return found


def _function_in(member: Any) -> Any:
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    return member.fget if isinstance(member, property) else member


_modules: dict[tuple[str, frozenset[str]], Uses] = {}


def _uses(module: types.ModuleType, names: frozenset[str]) -> Uses:
    """One object for each module and set of names, so that equal restrictions have one identity."""
    uses = _modules.get((module.__name__, names))
    if uses is None or uses.module is not module:
        uses = _modules[module.__name__, names] = Uses(module, names)
    return uses
