"""Digests of traced programs: two programs have the same digest where they compute the same numbers in the same way.

Every value in a jaxpr is hashed by its computation: primitive, parameters and operands, down to the inputs and the
bytes of the constants. The digest does not depend on names, source lines and addresses, on the order of independent
equations, or on equations whose results are not used (such as those of `jax.debug.print`). Calls (`jit`, `checkpoint`,
functions with custom derivative rules) are inlined: differentiation has already applied the rules. The programs inside
loops, branches and kernels are digested in the same way.

Nothing is compiled, and JAX's printed form is not used. Digests agree between processes, but may differ between
versions of JAX, which may trace the same function to other equations.
"""

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .description import as_numpy

_CALLS = {
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "eval_jaxpr",
}  # fmt: skip
_PRINTS = {"debug_callback", "debug_print"}
_SOURCE = {"debug_info", "name_and_src_info", "origin", "source_info", "src_info"}  # positions in the source code
_BESIDE_PROGRAMS = _SOURCE | {"name", "metadata", "cost_estimate", "debug", "computation"}  # no effect on the numbers
_NOT_COMPUTED = {"weak_type", "effects", "ctx_mesh", "policy"}  # jaxprs have explicit types; policies only save memory


class ProgramHasher:
    """Digests of programs that share constants: each constant and each inner program is hashed once.

    Attributes:
        unknown: calls in the programs so far that the equations do not show, such as "a host callback". Where it is
            empty, the digests cover everything that the programs compute.
    """

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        # Keyed by address; each entry keeps its object alive, so that the address is not reused.
        self._arrays: dict[tuple[int, bytes], tuple[Any, bytes]] = {}
        self._programs: dict[int, tuple[Any, bytes]] = {}
        self._inside: set[int] = set()

    def digest(self, function: Callable[..., Any], constants: tuple[Any, ...], inputs: tuple[Any, ...]) -> str:
        """The digest of `function(*constants, *inputs)`, which is traced and not run.

        Args:
            function: a function of pytrees that returns a pytree of arrays.
            constants: arguments whose arrays enter the digest by their values.
            inputs: arguments whose arrays enter by position, shape and dtype only, such as `jax.ShapeDtypeStruct`.
        """
        arrays, rest = eqx.partition((constants, inputs), _is_array)
        leaves, structure = jax.tree_util.tree_flatten(arrays)
        known = len(jax.tree_util.tree_leaves(arrays[0]))

        def traced(*leaves: Any) -> list[Any]:
            arrays = jax.tree_util.tree_unflatten(structure, leaves)
            constants, inputs = eqx.combine(arrays, rest)
            return [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(function(*constants, *inputs))]

        closed = jax.make_jaxpr(traced)(*leaves)
        kinds = [variable.aval for variable in closed.jaxpr.invars]
        operands = [self._array(leaf, kind) for leaf, kind in zip(leaves[:known], kinds[:known], strict=True)]
        operands += [_input(place, kind) for place, kind in enumerate(kinds[known:])]
        outputs, effects = self._evaluate(closed.jaxpr, closed.consts, operands, b"")
        return _hash("program", effects, *outputs).hex()

    def _evaluate(
        self, jaxpr: Any, constants: Iterable[Any], operands: Iterable[bytes], effects: bytes
    ) -> tuple[list[bytes], bytes]:
        """The digests of a program's outputs, and of the ordered effects (reads and writes) so far."""
        known: dict[Any, bytes] = dict(zip(jaxpr.invars, operands, strict=True))
        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = constant if isinstance(constant, bytes) else self._array(constant, variable.aval)

        def read(atom: Any) -> bytes:
            return self._array(atom.val, atom.aval) if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            if equation.primitive.name in _PRINTS:
                continue
            inputs = [read(atom) for atom in equation.invars]
            called = _called_primitive(equation)
            if called is not None:
                outputs, effects = self._evaluate(called.jaxpr, called.consts, inputs, effects)
            else:
                outputs, effects = self._equation(equation, inputs, effects)
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars], effects

    def _equation(self, equation: Any, inputs: list[bytes], effects: bytes) -> tuple[list[bytes], bytes]:
        name = equation.primitive.name
        kinds = [_kind(variable.aval) for variable in equation.outvars]
        if "callback" in name:
            self.unknown.add("a host callback")
            parameters = b""
        else:
            holds_program = any(_is_program(entry) for value in equation.params.values() for entry in _entries(value))
            skipped = _NOT_COMPUTED | (_BESIDE_PROGRAMS if holds_program or name == "name" else set())
            parameters = self._mapping({key: value for key, value in equation.params.items() if key not in skipped})
        own = _hash("equation", name, parameters, *kinds, *inputs)
        if any("Debug" not in type(effect).__name__ for effect in equation.effects):
            own = effects = _hash("effect", effects, own)
        return [_hash("output", str(place), own) for place in range(len(kinds))], effects

    def _program(self, jaxpr: Any) -> bytes:
        """The digest of a program inside another: the body of a loop, a branch, a kernel."""
        if id(jaxpr) not in self._programs:
            inner, constants = (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, None)
            if constants is None:
                constants = [_hash("constant", _input(i, entry.aval)) for i, entry in enumerate(inner.constvars)]
            operands = [_input(place, variable.aval) for place, variable in enumerate(inner.invars)]
            outputs, effects = self._evaluate(inner, constants, operands, b"")
            self._programs[id(jaxpr)] = jaxpr, _hash("program", effects, *operands, *outputs)
        return self._programs[id(jaxpr)][1]

    def _array(self, value: Any, kind: Any) -> bytes:
        """The digest of a constant, cast to the dtype that it has in the program."""
        key = id(value), _kind(kind)
        if key not in self._arrays:
            array = as_numpy(value)
            expected = getattr(kind, "dtype", array.dtype)
            if isinstance(expected, np.dtype) and array.dtype != expected:
                array = array.astype(expected)
            content = hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=16)
            self._arrays[key] = value, _hash("array", key[1], str(array.dtype), content.digest())
        return self._arrays[key][1]

    def _mapping(self, values: Mapping[Any, Any]) -> bytes:
        return _hash("mapping", *sorted(_hash("entry", self._value(key), self._value(values[key])) for key in values))

    def _value(self, value: Any) -> bytes:
        """The digest of a parameter of an equation."""
        if value is None or isinstance(value, bool | str | bytes | complex):
            return _hash("plain", repr(value))
        if isinstance(value, enum.Enum):
            return _hash("choice", type(value).__name__, value.name)
        if isinstance(value, int | float) and not isinstance(value, np.generic):
            return _hash("number", repr(int(value) if isinstance(value, int) else float(value)))
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value, value)
        if _is_program(value):
            return self._program(value)
        if isinstance(value, tuple | list | PartitionSpec):
            return _hash("sequence", *map(self._value, value))
        if isinstance(value, set | frozenset):
            return _hash("set", *sorted(map(self._value, value)))
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, range | slice | np.dtype):
            return _hash("plain", repr(value))
        if isinstance(value, jax.core.AbstractValue):
            return _kind(value)
        return self._object(value)

    def _object(self, value: Any) -> bytes:
        """The digest of a parameter that is an object: its class and its attributes."""
        if isinstance(value, Mesh | AbstractMesh):
            return _hash("mesh", self._value(value.axis_names), self._value(tuple(value.shape.values())))
        if isinstance(value, NamedSharding):
            return _hash("sharding", self._value(value.mesh), self._value(value.spec))
        if isinstance(value, jax.tree_util.PyTreeDef):
            return _hash("tree", str(value.num_leaves))
        if isinstance(value, functools.partial):
            return _hash("partial", self._value(value.func), self._value(value.args), self._value(value.keywords))
        if isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
            return _hash("name", f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}")
        if not _is_of_jax(value) and (callable(value) or not dataclasses.is_dataclass(value)):
            self.unknown.add("a function or object that JAX does not trace")
            return _hash("unknown")
        if id(value) in self._inside:
            return _hash("itself")
        self._inside.add(id(value))
        try:
            kind = value if isinstance(value, types.FunctionType) else type(value)
            parts = {name: part for name, part in _attributes(value) if name not in _SOURCE | _NOT_COMPUTED}
            return _hash("object", f"{kind.__module__}.{kind.__qualname__}", self._mapping(parts))
        finally:
            self._inside.discard(id(value))


def _called_primitive(equation: Any) -> Any:
    """The closed program of an equation that only calls it; `None` for other equations."""
    if equation.primitive.name not in _CALLS:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        program = equation.params.get(name)
        if _is_program(program):
            closed = program if hasattr(program, "consts") else core.ClosedJaxpr(program, [])
            return closed if len(closed.jaxpr.invars) == len(equation.invars) else None
    return None


def _is_of_jax(value: Any) -> bool:
    """Whether JAX defines this function or the class of this object, so that JAX's version fixes its behaviour."""
    kind = value if isinstance(value, types.FunctionType) else type(value)
    return (kind.__module__ or "").partition(".")[0] in ("jax", "jaxlib")


def _entries(value: Any) -> Iterable[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _is_program(value: Any) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object without its caches; the variables that a function closes over."""
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield name, cell.cell_contents
        return
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
        return
    slots = [name for kind in type(value).__mro__ for name in _entries(getattr(kind, "__slots__", ()))]
    names = [*getattr(value, "__dict__", {}), *slots]
    public = [name for name in names if not name.startswith("_") and name != "hash"]
    for name in public or [name for name in names if "hash" not in name and "cache" not in name]:
        yield name, getattr(value, name, None)


def _input(place: int, kind: Any) -> bytes:
    return _hash("input", str(place), _kind(kind))


def _kind(aval: Any) -> bytes:
    """The digest of an abstract value: shape and dtype; for a reference also its class and its inner value."""
    inner = getattr(aval, "inner_aval", None)
    space = getattr(aval, "memory_space", None)
    parts = [type(aval).__name__ if inner is not None else "", str(getattr(aval, "shape", ""))]
    parts += [str(getattr(aval, "dtype", "")), str(space) if inner is not None else ""]
    return _hash("kind", *parts, b"" if inner is None else _kind(inner))


def _hash(tag: str, *parts: str | bytes) -> bytes:
    """A digest of parts, each preceded by its length so that their boundaries count."""
    digest = hashlib.blake2b(tag.encode(), digest_size=16)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.digest()
