"""Log densities that reach the same NumPy arrays in every way that Python has: for `test_closures.py`.

Each is −½ Σ (x[INDEX] − DATA)², with arrays of its own.
"""

import argparse
import collections
import dataclasses
import functools
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

SIZE = 3


def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Indices and data, whose digits single precision cannot hold."""
    return np.array([2, 0, 1]), np.array([1e5 + 1e-3, 0.1, -3.0])


def density(x: Any, index: Any, data: Any) -> Any:
    return -0.5 * jnp.sum((x[index] - data) ** 2)


class Pair(NamedTuple):
    index: Any
    data: Any


@dataclasses.dataclass(eq=False)
class Held:
    index: Any
    data: Any

    def log_density(self, x: Any) -> Any:
        return density(x, self.index, self.data)

    def __call__(self, x: Any) -> Any:
        return self.log_density(x)


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Slotted:
    index: Any
    data: Any

    def __call__(self, x: Any) -> Any:
        return density(x, self.index, self.data)


class Module(eqx.Module):
    index: Any
    data: Any

    def __call__(self, x: Any) -> Any:
        return density(x, self.index, self.data)


GLOBAL_INDEX, GLOBAL_DATA = arrays()


def of_globals(x):
    return density(x, GLOBAL_INDEX, GLOBAL_DATA)


@jax.jit
def of_globals_compiled(x):
    return density(x, GLOBAL_INDEX, GLOBAL_DATA)


class OfGlobals:
    def __call__(self, x):
        return self.inside(x)

    @staticmethod
    def inside(x):
        return density(x, GLOBAL_INDEX, GLOBAL_DATA)


class ModuleOfGlobals(eqx.Module):
    def __call__(self, x):
        return density(x, GLOBAL_INDEX, GLOBAL_DATA)


def closure(index, data):
    return lambda x: density(x, index, data)


def defaults(index, data):
    def function(x, index=index, *, data=data):
        return density(x, index, data)

    return function


def helper(index, data):
    def residuals(x):
        return x[index] - data

    return lambda x: -0.5 * jnp.sum(residuals(x) ** 2)


def attributes(index, data):
    def function(x):
        return density(x, function.index, function.data)

    function.index, function.data = index, data
    return function


def class_variables(index, data):
    class Model:
        own = index
        values = data

        def __call__(self, x):
            return density(x, self.own, Model.values)

    return Model()


def properties(index, data):
    class Model:
        def __init__(self):
            self._data = data

        @property
        def data(self):
            return self._data

        def __call__(self, x):
            return density(x, index, self.data)

    return Model()


def cached(index, data):
    @functools.lru_cache
    def table():
        return index, data

    return lambda x: density(x, *table())


def module(index, data):
    other = types.ModuleType("helpers_of_a_user")
    exec(
        "import jax.numpy as jnp\ndef density(x):\n    return -0.5 * jnp.sum((x[INDEX] - DATA) ** 2)",
        other.__dict__,
    )
    other.INDEX, other.DATA = index, data
    scope = {"other": other}
    exec("def function(x):\n    return other.density(x)", scope)
    return scope["function"]


def module_attributes(index, data):
    other = types.ModuleType("constants_of_a_user")
    other.INDEX, other.DATA = index, data
    scope = {"other": other, "density": density}
    exec("def function(x):\n    return density(x, other.INDEX, other.DATA)", scope)
    return scope["function"]


def compiled_inside(index, data):
    inner = jax.jit(lambda x: x[index] - data)
    return lambda x: -0.5 * jnp.sum(inner(x) ** 2)


def mapped(index, data):
    return lambda x: -0.5 * jnp.sum(jax.vmap(lambda i, y: (x[i] - y) ** 2)(index, data))


def scanned(index, data):
    def function(x):
        def body(total, place):
            return total - 0.5 * (x[jnp.asarray(index)[place]] - jnp.asarray(data)[place]) ** 2, None

        return jax.lax.scan(body, jnp.zeros((), x.dtype), np.arange(SIZE))[0]

    return function


def own_derivative(index, data):
    @jax.custom_vjp
    def function(x):
        return density(x, index, data)

    def backward(x, g):
        return (jnp.zeros_like(x).at[index].add(-g * (x[index] - data)),)

    function.defvjp(lambda x: (function(x), x), backward)
    return function


def recursive(index, data):
    def term(x, place):
        own = -0.5 * (x[index[place]] - data[place]) ** 2
        return own if place == 0 else own + term(x, place - 1)

    return lambda x: term(x, SIZE - 1)


def decorated(index, data):
    def doubled(function):
        @functools.wraps(function)
        def inner(x):
            return 2 * function(x) / 2

        return inner

    return doubled(closure(index, data))


def self_referring(index, data):
    class Model:
        def __init__(self):
            self.index, self.data = index, data
            self.density = lambda x: density(x, self.index, self.data)

        def __call__(self, x):
            return self.density(x)

    return Model()


KINDS = {
    "closure": closure,
    "defaults": defaults,
    "partial, by position": lambda index, data: functools.partial(lambda i, y, x: density(x, i, y), index, data),
    "partial, by name": lambda index, data: functools.partial(density, index=index, data=data),
    "method": lambda index, data: Held(index, data).log_density,
    "callable object": Held,
    "object with slots": Slotted,
    "Equinox module": Module,
    "class variables": class_variables,
    "property": properties,
    "helper": helper,
    "attributes of a function": attributes,
    "dictionary": lambda index, data: (lambda held: lambda x: density(x, **held))({"index": index, "data": data}),
    "nested containers": lambda index, data: (lambda h: lambda x: density(x, h[0]["i"], h[1][0]))(
        ({"i": index}, [data])
    ),
    "named tuple": lambda index, data: (lambda held: lambda x: density(x, held.index, held.data))(Pair(index, data)),
    "dataclass": lambda index, data: (lambda held: lambda x: density(x, held.index, held.data))(Held(index, data)),
    "namespace": lambda index, data: (lambda held: lambda x: density(x, held.index, held.data))(
        types.SimpleNamespace(index=index, data=data)
    ),
    "arguments of a command": lambda index, data: (lambda held: lambda x: density(x, held.index, held.data))(
        argparse.Namespace(index=index, data=data)
    ),
    "deque": lambda index, data: (lambda held: lambda x: density(x, *held))(collections.deque([index, data])),
    "cached function": cached,
    "module": module,
    "attributes of a module": module_attributes,
    "compiled": lambda index, data: jax.jit(closure(index, data)),
    "compiled inside": compiled_inside,
    "vmap": mapped,
    "scan": scanned,
    "custom_vjp": own_derivative,
    "recursion": recursive,
    "decorator": decorated,
    "object that refers to itself": self_referring,
    "checkpoint": lambda index, data: jax.checkpoint(closure(index, data)),
}
GLOBALS = {
    "globals": of_globals,
    "globals, compiled": of_globals_compiled,
    "globals in methods": OfGlobals(),
    "globals in an Equinox module": ModuleOfGlobals(),
}


def cases() -> dict[str, tuple[Any, np.ndarray, np.ndarray]]:
    """Name → (log density, its indices, its data)."""
    made = {}
    for name, kind in KINDS.items():
        index, data = arrays()
        made[name] = (kind(index, data), index, data)
    made.update({name: (function, GLOBAL_INDEX, GLOBAL_DATA) for name, function in GLOBALS.items()})
    return made
