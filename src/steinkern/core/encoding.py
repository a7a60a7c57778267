"""Values as JSON beside a list of arrays, by the types of the fields of their classes.

Reading builds values of the declared types only: a file names no class and no function, so nothing in it is imported or
called. `ValueError` or `TypeError` where an entry is not of its declared type.
"""

import dataclasses
import enum
import itertools
import json
import types
import typing
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .multihost import on_host
from .notices import Notice, Phrase
from .types import PyTree

Json = Any
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_PHRASES = {phrase.name: phrase for phrase in Phrase}


def encode(hint: Any, value: Any, arrays: list[np.ndarray]) -> Json:
    """A value of a declared type as JSON; its arrays are appended to `arrays`.

    The types are `bool`, `int`, `float`, `str`, `np.ndarray`, enumerations, `Notice`, tuples of one type, dataclasses
    of these, optional ones, and `Any` for a pytree of arrays.
    """
    optional, inner = _without_none(hint)
    if optional and value is None:
        return None
    if inner is Any:
        return encode_tree(value, arrays)
    if inner is np.ndarray:
        return _append(np.asarray(value), arrays)
    if inner is bool or inner is int:
        return inner(value)
    if inner is float:
        number = float(value)
        return number if np.isfinite(number) else {"float": repr(number)}
    if inner is str:
        return str(value)
    if inner is Notice:
        return _encode_notice(value)
    if typing.get_origin(inner) is tuple:
        entry = typing.get_args(inner)[0]
        if entry is str:  # the names of a million coordinates do not fit into a header
            text = json.dumps([str(text) for text in value]).encode()
            return _append(np.frombuffer(text, np.uint8), arrays)
        return [encode(entry, one, arrays) for one in value]
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return inner(value).value
    if dataclasses.is_dataclass(inner):
        hints = typing.get_type_hints(inner)
        return {
            field.name: encode(hints[field.name], getattr(value, field.name), arrays)
            for field in dataclasses.fields(inner)
        }
    raise TypeError(f"{hint!r} is no type that a file can hold.")


def decode(hint: Any, value: Json, arrays: list[np.ndarray]) -> Any:
    """The value of a declared type from the JSON that `encode` made of it."""
    optional, inner = _without_none(hint)
    if optional and value is None:
        return None
    if inner is Any:
        return decode_tree(value, arrays)
    if inner is np.ndarray:
        return _array(value, arrays)
    if inner is bool or inner is str:
        return _of_type(inner, value)
    if inner is int:
        return _integer(value)
    if inner is float:
        if isinstance(value, dict):
            return _FLOATS[value["float"]]
        return float(_of_type((int, float), value))
    if inner is Notice:
        return _decode_notice(value)
    if typing.get_origin(inner) is tuple:
        entry = typing.get_args(inner)[0]
        if entry is str:
            value = json.loads(np.asarray(_array(value, arrays), np.uint8).tobytes())
            return tuple(_of_type(str, text) for text in _of_type(list, value))
        return tuple(decode(entry, one, arrays) for one in _of_type(list, value))
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return inner(value)
    if dataclasses.is_dataclass(inner) and isinstance(inner, type):
        return inner(**decode_fields(inner, dataclasses.fields(inner), value, arrays))
    raise TypeError(f"{hint!r} is no type that a file can hold.")


def decode_fields(owner: type, fields: Iterable[Any], value: Json, arrays: list[np.ndarray]) -> dict[str, Any]:
    """The fields of a dataclass; a file of an earlier version may lack some that have a default."""
    entries, hints = _of_type(dict, value), typing.get_type_hints(owner)
    return {
        field.name: decode(hints[field.name], entries[field.name], arrays)
        for field in fields
        if field.name in entries or not _has_default(field)
    }


# Pytrees.


def encode_tree(tree: PyTree, arrays: list[np.ndarray]) -> Json:
    """A pytree of arrays: with its structure where that is of dictionaries, lists and tuples, else its leaves."""
    if _is_plain(tree):
        return _encode_node(tree, arrays)
    leaves = jax.tree_util.tree_leaves(tree)
    # A leaf that is no array, such as an activation function, is not in the file.
    nodes = [_encode_node(leaf, arrays) if _is_plain(leaf) else None for leaf in leaves]
    return {"class": _class_name(tree), "leaves": nodes}


def decode_tree(value: Json, arrays: list[np.ndarray], structure: Any = None, others: Any = ()) -> PyTree:
    """The pytree that `encode_tree` wrote, in its own structure or in a given one.

    Args:
        value: the JSON.
        arrays: the arrays of the file.
        structure: a JAX tree structure for the leaves; needed where `class_of_tree(value)` is not empty.
        others: leaves in place of those that are no arrays, which a file does not hold.
    """
    if structure is None:
        return _decode_node(value, arrays)
    leaves = leaves_of_tree(value, arrays)
    filled = [other if leaf is None else leaf for leaf, other in itertools.zip_longest(leaves, others)]
    return jax.tree_util.tree_unflatten(structure, filled[: len(leaves)])


def leaves_of_tree(value: Json, arrays: list[np.ndarray]) -> list[Any]:
    """The leaves of an encoded tree, with `None` for those that are no arrays."""
    if class_of_tree(value):
        return [_decode_node(leaf, arrays) for leaf in _of_type(list, value["leaves"])]
    return jax.tree_util.tree_leaves(_decode_node(value, arrays))


def class_of_tree(value: Json) -> str:
    """The class of an encoded tree whose structure is not in the file; empty where it is."""
    return _of_type(str, value["class"]) if isinstance(value, dict) and "class" in value else ""


def _is_plain(tree: PyTree) -> bool:
    if type(tree) is dict:
        return all(type(key) in (str, int) for key in tree) and all(map(_is_plain, tree.values()))
    if type(tree) in (list, tuple):
        return all(map(_is_plain, tree))
    if isinstance(tree, np.ndarray | jax.Array):
        return tree.dtype != object and not jnp.issubdtype(tree.dtype, jax.dtypes.prng_key)
    return tree is None


def _encode_node(tree: PyTree, arrays: list[np.ndarray]) -> Json:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {"dict": [[key, _encode_node(entry, arrays)] for key, entry in tree.items()]}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_encode_node(entry, arrays) for entry in tree]}
    place = _append(on_host(tree), arrays)
    return {**place, "jax": isinstance(tree, jax.Array)}


def _decode_node(value: Json, arrays: list[np.ndarray]) -> PyTree:
    if value is None:
        return None
    node = _of_type(dict, value)
    if "dict" in node:
        pairs = [(key, _decode_node(entry, arrays)) for key, entry in _of_type(list, node["dict"])]
        return {_of_type((str, int), key): entry for key, entry in pairs}
    for kind in (list, tuple):
        if kind.__name__ in node:
            return kind(_decode_node(entry, arrays) for entry in _of_type(list, node[kind.__name__]))
    array = _array(node, arrays)
    # JAX would round double precision to single where it is switched off; such arrays stay NumPy's.
    held = node["jax"] is True and jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype
    return jnp.asarray(array) if held else array


def _class_name(tree: PyTree) -> str:
    """The first class in a tree, from its root, that a file does not hold."""
    if type(tree) in (list, tuple):
        return next(_class_name(entry) for entry in tree if not _is_plain(entry))
    if type(tree) is dict and all(type(key) in (str, int) for key in tree):
        return next(_class_name(entry) for entry in tree.values() if not _is_plain(entry))
    return type(tree).__name__


# Leaves.


def _append(array: np.ndarray, arrays: list[np.ndarray]) -> dict[str, int]:
    arrays.append(array)
    return {"array": len(arrays) - 1}


def _array(value: Json, arrays: list[np.ndarray]) -> np.ndarray:
    place = _integer(_of_type(dict, value)["array"])
    if not 0 <= place < len(arrays):
        raise ValueError("no such array")
    return arrays[place].copy()  # those of a file cannot be written to


def _encode_notice(notice: str) -> Json:
    fragments = getattr(notice, "fragments", (str(notice),))
    return {
        "code": getattr(notice, "code", ""),
        "fragments": [
            {"phrase": part.name, "text": part.value} if isinstance(part, Phrase) else str(part) for part in fragments
        ],
    }


def _decode_notice(value: Json) -> Notice:
    fragments: list[str | Phrase] = []
    for part in _of_type(list, _of_type(dict, value)["fragments"]):
        known = _PHRASES.get(_of_type(str, part["phrase"])) if isinstance(part, dict) else None
        text = part["text"] if isinstance(part, dict) else part  # a phrase of another version stays as its text
        fragments.append(_of_type(str, text) if known is None else known)
    return Notice(_of_type(str, value["code"]), *fragments)


def _without_none(hint: Any) -> tuple[bool, Any]:
    """Whether a type is optional, and the type itself."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return False, hint
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    if len(members) != 1:
        raise TypeError(f"{hint!r} is no type that a file can hold.")
    return True, members[0]


def _of_type(kind: Any, value: Any) -> Any:
    """Return the value; `TypeError` unless it is of this type. A bool is not accepted as an int."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {kind}, got {type(value)}")
    return value


def _integer(value: Any) -> int:
    number = _of_type(int, value)
    if abs(number) >= 2**63:
        raise ValueError("too large a number")
    return int(number)


def _has_default(field: Any) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
