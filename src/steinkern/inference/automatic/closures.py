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
import collections
import copy
import functools
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

T = TypeVar("T")

_MOST_OBJECTS = 100_000  # that are looked at: beyond, whatever is not yet seen stays as it is
_MOST_KEPT = 32  # rebuilt functions that are remembered
_LIBRARIES = frozenset(sys.stdlib_module_names - {"__main__"}) | {
    "arviz", "beartype", "blackjax", "distrax", "equinox", "flax", "jax", "jaxlib", "jaxtyping", "matplotlib",
    "ml_dtypes", "numpy", "numpyro", "optax", "pandas", "pymc", "pytensor", "pytest", "scipy", "sklearn", "steinkern",
    "tensorflow_probability", "torch", "tqdm", "xarray",
}  # fmt: skip
"""Packages whose own globals and classes hold no array of the caller's."""
_HOLDERS = frozenset(
    {"distrax", "equinox", "flax", "functools", "jax", "jaxlib", "numpyro", "pymc", "pytensor", "steinkern"}
)
"""Libraries whose objects hold functions and arrays of the caller's."""
_ATOMS = (str, bytes, int, float, complex, bool, type(None), np.generic, np.dtype, jax.Array, range, slice)


def on_copied_arrays(thing: T) -> T:
    """`thing`, a function or an object that holds functions, on copies of all 64-bit NumPy arrays that it reaches.

    Called again for the same functions, with arrays of the same contents, it returns the same copies of them, so that
    JAX finds what it has compiled.
    """
    if _package(type(thing)) == "steinkern":  # a target, made anew for every call: part by part
        parts = {name: on_copied_arrays(part) for name, part in vars(thing).items()}
        changed = {name: part for name, part in parts.items() if part is not vars(thing)[name]}
        if not changed:
            return thing
        new = copy.copy(thing)
        for name, part in changed.items():
            object.__setattr__(new, name, part)
        return new
    if _is_wide_array(thing):
        return np.array(thing)  # type: ignore[return-value]
    graph = _Graph()
    root = graph.add(thing)
    leading = graph.leading_to_arrays()
    if root not in leading:
        return thing
    made = _rebuilt(leading, _kept.find(leading))
    _kept.add(leading, made)
    return made[root]


class _Node(NamedTuple):
    thing: Any
    parts: dict[Any, int]


class _Graph:
    """What a function refers to, by identity."""

    def __init__(self) -> None:
        self.nodes: dict[int, _Node] = {}

    def add(self, thing: Any) -> int:
        """The identity of `thing`, after it and all that it refers to have been entered."""
        waiting = [thing]
        while waiting:
            node = waiting.pop()
            if id(node) in self.nodes:
                continue
            parts = {} if len(self.nodes) > _MOST_OBJECTS else _parts(node)
            self.nodes[id(node)] = _Node(node, {slot: id(part) for slot, part in parts.items()})
            waiting.extend(parts.values())
        return id(thing)

    def leading_to_arrays(self) -> dict[int, _Node]:
        """The nodes from which an array is reached, and these arrays."""
        referring: dict[int, list[int]] = {}
        for own, node in self.nodes.items():
            for part in node.parts.values():
                referring.setdefault(part, []).append(own)
        waiting = [own for own, node in self.nodes.items() if _is_wide_array(node.thing)]
        found: set[int] = set()
        while waiting:
            own = waiting.pop()
            if own not in found:
                found.add(own)
                waiting.extend(referring.get(own, []))
        return {own: node for own, node in self.nodes.items() if own in found}


class _Uses(NamedTuple):
    """A module, as far as a function refers to it by these names."""

    module: types.ModuleType
    names: frozenset[str]


def _is_wide_array(thing: Any) -> bool:
    """Whether this is an array whose type in JAX depends on the precision in force."""
    return isinstance(thing, np.ndarray) and thing.dtype.kind in "iufc" and thing.dtype.itemsize >= 8


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


def _parts(thing: Any) -> dict[Any, Any]:
    """What `thing` refers to that may lead to an array, by place."""
    if isinstance(thing, (*_ATOMS, np.ndarray)):
        return {}
    if isinstance(thing, types.FunctionType):
        return _parts_of_function(thing)
    if isinstance(thing, _Uses):
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
    if (wrapped := _wrapped(thing)) is not None:
        return {"wrapped": wrapped}
    if _package(type(thing)) in sys.stdlib_module_names:  # a namespace, for one: its class holds nothing
        return _attributes(thing)
    if _package(type(thing)) in _LIBRARIES - _HOLDERS:
        return {}
    return {"class": type(thing), **_attributes(thing)}


def _attributes(thing: Any) -> dict[str, Any]:
    slots = [name for base in type(thing).__mro__ for name in _slots(base) if hasattr(thing, name)]
    return {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots}}


def _wrapped(thing: Any) -> Any:
    """What a compiled or a caching function wraps: neither shows its closure."""
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
    if _package(function) not in _LIBRARIES:
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
            if part.__name__.partition(".")[0] in _LIBRARIES:
                continue
            part = _uses(part, names)
        found[name] = part
    return found


def _parts_of_class(cls: type) -> dict[Any, Any]:
    """The members of a class of the caller's and of its bases, methods as plain functions."""
    if type(cls) not in (type, abc.ABCMeta):  # others do more than make a class: see `as_function`
        return {}
    found: dict[Any, Any] = {}
    for base in reversed(cls.__mro__):
        if _package(base) not in _LIBRARIES:
            found.update({name: _function_in(member) for name, member in vars(base).items() if name != "__dict__"})
    return found


def _function_in(member: Any) -> Any:
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    return member.fget if isinstance(member, property) else member


_modules: dict[tuple[str, frozenset[str]], _Uses] = {}


def _uses(module: types.ModuleType, names: frozenset[str]) -> _Uses:
    """One object for a module and some names, so that its identity says which they are."""
    uses = _modules.get((module.__name__, names))
    if uses is None or uses.module is not module:
        uses = _modules[module.__name__, names] = _Uses(module, names)
    return uses


def _rebuilt(leading: dict[int, _Node], made: dict[int, Any]) -> dict[int, Any]:
    """Copies of the nodes that lead to arrays, by the identity of the originals; those in `made` are there already.

    What can be changed is made first and filled afterwards, because its parts may refer to it.
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
            done.add(own)  # before its parts, which may refer to it
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
    """A copy whose parts are set afterwards; `None` for what cannot be changed."""
    if isinstance(thing, np.ndarray):
        return (np.array(thing),)
    if isinstance(thing, types.FunctionType):
        return (_empty_function(thing, changing),)
    if isinstance(thing, dict | list | collections.deque):
        return (copy.copy(thing),)
    if isinstance(thing, _Uses):
        module = types.ModuleType(thing.module.__name__)
        module.__dict__.update(vars(thing.module))
        return (module,)
    if isinstance(thing, types.MethodType | functools.partial | tuple) or _wrapped(thing) is not None:
        return None
    try:
        if isinstance(thing, type):
            members = {"__module__": thing.__module__, "__slots__": ()}
            return (type(thing)(thing.__name__, (thing,), members),)
        return (_object_like(thing),)
    except Exception:  # whatever an object's own way of being copied may raise: it stays as it is
        return (thing,)


def _object_like(thing: Any) -> Any:
    """A copy of an object that shares its attributes."""
    try:
        new = object.__new__(type(thing))
    except TypeError:  # of a type that Python does not make
        return copy.copy(thing)
    for name, part in _attributes(thing).items():
        object.__setattr__(new, name, part)
    return new


def _empty_function(function: types.FunctionType, changing: set[Any]) -> types.FunctionType:
    """The function with empty cells, and a scope of its own, where other things are to come into them."""
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
    """Set the new parts of what `_shell` made."""
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
    elif isinstance(thing, _Uses):
        shell.__dict__.update(new)
    elif isinstance(thing, type):
        for name, part in new.items():
            setattr(shell, name, _as_member(thing, name, part))
    elif not isinstance(thing, np.ndarray):
        for name, part in new.items():
            object.__setattr__(shell, "__class__" if name == "class" else name, part)


def _with_parts(thing: Any, new: dict[Any, Any]) -> Any:
    """What cannot be changed, made of its new parts."""
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
    return new["wrapped"]  # a compiled function is traced as a part of what calls it


def _as_member(cls: type, name: str, part: Any) -> Any:
    member = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
    if isinstance(member, staticmethod | classmethod):
        return type(member)(part)
    return property(part, member.fset, member.fdel) if isinstance(member, property) else part


class _Kept:
    """Copies of functions, objects and arrays, for as long as the originals live and the arrays do not change."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, tuple[list[Any], dict[int, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, leading: dict[int, _Node]) -> dict[int, Any]:
        """The copies made of the same objects before; none where an array, or a number beside it, has changed since."""
        with self._lock:
            _, made = self._entries.get(_signature(leading), ([], {}))
        arrays = [(node.thing, own) for own, node in leading.items() if isinstance(node.thing, np.ndarray)]
        return made if all(own in made and _same(array, made[own]) for array, own in arrays) else {}

    def add(self, leading: dict[int, _Node], made: dict[int, Any]) -> None:
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


def _signature(leading: dict[int, _Node]) -> tuple[Any, ...]:
    """Equal for the same objects, with the same numbers and texts beside their arrays."""
    objects = tuple(sorted(own for own, node in leading.items() if _lasts(node.thing)))
    plain = str | bytes | int | float | complex | bool | None
    beside = (
        (repr(slot), part)
        for node in leading.values()
        for slot, part in _parts(node.thing).items()
        if isinstance(part, plain)
    )
    return objects, tuple(beside)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def as_function(thing: Callable[..., Any]) -> Callable[..., Any]:
    """A callable object whose class cannot be rebuilt, as the method that it is called by."""
    cls = type(thing)
    call = vars(cls).get("__call__")
    plain = isinstance(thing, types.FunctionType | types.MethodType | functools.partial) or _wrapped(thing) is not None
    if (
        plain
        or type(cls) in (type, abc.ABCMeta)
        or not isinstance(call, types.FunctionType)
        or _package(cls) in _LIBRARIES
    ):
        return thing
    return types.MethodType(call, thing)
