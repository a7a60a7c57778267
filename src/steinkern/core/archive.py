"""Saved results and checkpoints: `.npz` files, written atomically and read only where they are whole.

The members of a file are the arrays of a tree, named by their paths, and `meta`, the rest of the tree as JSON. The
comment of the zip file is a SHA-256 over all bytes before it, checked before any of them is parsed. Reading executes no
code of the file.
"""

import contextlib
import dataclasses
import enum
import hashlib
import importlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import filelock
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .multihost import on_host
from .types import PyTree, warn_caller

Json = Any
Arrays = dict[str, np.ndarray]

_ARRAY = np.ndarray | np.generic | jax.Array
_PACKAGE = f"{__name__.partition('.')[0]}."
_NUM_DIGITS = 2 * hashlib.sha256().digest_size  # of a checksum, in hexadecimal
_NUM_CHECKPOINTS = 2  # in a directory, so that a damaged file does not cost the run


class CheckpointError(OSError, ValueError):
    """A checkpoint could not be written, or belongs to another run than the one that would resume from it.

    Attributes:
        result: where it could not be written, for example because the disk is full: the run's result up to that step.
            The last good checkpoint is intact.
        differences: where it belongs to another run, the names of what differs.
    """

    def __init__(self, text: str, differences: tuple[str, ...] = ()):
        super().__init__(text)
        self.result: Any = None
        self.differences = differences


class DamagedFileError(ValueError):
    """A file is truncated or altered, or was not written by steinkern."""


# Trees.


def pack(value: PyTree, arrays: Arrays, name: str) -> Json:
    """A tree as JSON; its arrays are added to `arrays`, named by their paths below `name`.

    It may hold numbers, texts, enumerations and dataclasses of this package, dictionaries, lists and tuples. Of other
    classes, such as a user's module, only the arrays are packed: `unpack` takes a template for them.
    """
    if _is_record(type(value)):
        is_enum, class_name = isinstance(value, enum.Enum), f"{type(value).__module__}:{type(value).__qualname__}"
        names = ["value"] if is_enum else [field.name for field in dataclasses.fields(value)]
        fields = {field: pack(getattr(value, field), arrays, f"{name}/{field}") for field in names}
        return {"record": class_name, "fields": fields}
    match value:
        case np.ndarray() | np.generic() | jax.Array():
            return _pack_array(value, arrays, name)
        case _ if foreign_class(value):
            return pack_leaves(value, arrays, name)
        case dict():
            return {"dict": [[key, pack(entry, arrays, f"{name}/{key}")] for key, entry in value.items()]}
        case list() | tuple():
            return {type(value).__name__: [pack(entry, arrays, f"{name}/{i}") for i, entry in enumerate(value)]}
    return value


def pack_leaves(tree: PyTree, arrays: Arrays, name: str) -> Json:
    """A tree of any classes as JSON, without its structure; `None` for leaves other than arrays."""
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        inside = f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}"
        leaves.append(_pack_array(leaf, arrays, inside) if isinstance(leaf, _ARRAY) else None)
    return {"leaves": leaves, "class": foreign_class(tree)}


def unpack(node: Json, arrays: Arrays, template: PyTree = None) -> PyTree:
    """Undo `pack`: the tree of a JSON node.

    Args:
        node: the JSON.
        arrays: the arrays of the file.
        template: a tree with the structure of the parts that have other classes, and their leaves other than arrays.
    """
    match node:
        case {"array": name, "jax": is_jax}:
            # JAX would round double precision where it computes in single precision: such arrays stay NumPy's.
            fits = jax.dtypes.canonicalize_dtype(arrays[name].dtype) == arrays[name].dtype
            return jnp.asarray(arrays[name]) if is_jax and fits else arrays[name]
        case {"key": name, "impl": impl}:
            return jr.wrap_key_data(jnp.asarray(arrays[name]), impl=impl)
        case {"record": name, "fields": fields}:
            return _class(name)(**{field: unpack(entry, arrays, template) for field, entry in fields.items()})
        case {"leaves": leaves}:
            others, structure = jax.tree_util.tree_flatten(template)
            unpacked = [unpack(leaf, arrays) for leaf in leaves]
            filled = [other if leaf is None else leaf for leaf, other in zip(unpacked, others, strict=True)]
            return jax.tree_util.tree_unflatten(structure, filled)
        case {"dict": pairs}:
            return {key: unpack(entry, arrays, template) for key, entry in pairs}
        case {"list": entries}:
            return [unpack(entry, arrays, template) for entry in entries]
        case {"tuple": entries}:
            return tuple(unpack(entry, arrays, template) for entry in entries)
    return node


def foreign_class(tree: PyTree) -> str:
    """The first class in a tree whose structure a file does not hold; empty where there is none."""
    if type(tree) in (list, tuple):
        return next(filter(None, map(foreign_class, tree)), "")
    if type(tree) is dict and all(type(key) in (str, int) for key in tree):
        return foreign_class(list(tree.values()))
    storable = tree is None or isinstance(tree, _ARRAY | bool | int | float | str)
    return "" if storable or _is_record(type(tree)) else type(tree).__name__


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _is_record(cls: Any) -> bool:
    """Whether this is an enumeration or a dataclass of this package; modules hold functions."""
    if not (isinstance(cls, type) and cls.__module__.startswith(_PACKAGE)):
        return False
    return issubclass(cls, enum.Enum) or (dataclasses.is_dataclass(cls) and not issubclass(cls, eqx.Module))


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    cls = getattr(importlib.import_module(module), qualname) if module.startswith(_PACKAGE) else None
    if not _is_record(cls):
        raise DamagedFileError(f"{name} is not a record of this package.")
    return cls


def _pack_array(array: Any, arrays: Arrays, name: str) -> Json:
    name = re.sub(r"[^\w./ \[\]-]", "_", name).strip("/")
    while name in arrays:  # {"a/b": …} beside {"a": {"b": …}}
        name += "_"
    if is_key(array):
        arrays[name] = np.asarray(jr.key_data(array))
        return {"key": name, "impl": str(jr.key_impl(array))}
    arrays[name] = on_host(array)
    return {"array": name, "jax": isinstance(array, jax.Array)}


# Files.


def write(path: Path, meta: Json, arrays: Arrays) -> None:
    """Write a file atomically: readers see the whole new file, or the old one."""
    text = json.dumps({"types": {name: array.dtype.name for name, array in arrays.items()}, **meta})
    members: dict[str, Any] = {name: as_plain(array) for name, array in arrays.items()}
    members["meta"] = np.frombuffer(text.encode(), np.uint8)
    with replacing(path) as file:
        np.savez(file, **members)
        file.seek(-2, os.SEEK_END)  # the length of the comment that ends a zip file
        file.write(_NUM_DIGITS.to_bytes(2, "little"))
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())


def read(path: Path) -> tuple[Json, Arrays]:
    """The JSON and the arrays of a file; `DamagedFileError` where any of its bytes has changed."""
    if not _is_whole(path):
        raise DamagedFileError(f"{path} is truncated or altered, or no file of steinkern (its checksum differs)")
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    meta = json.loads(arrays.pop("meta").tobytes())
    types = meta.pop("types")
    return meta, {name: array.view(jnp.dtype(types[name])) for name, array in arrays.items()}


def _is_whole(path: Path) -> bool:
    content = np.fromfile(path, np.uint8)
    digest = hashlib.sha256(content[:-_NUM_DIGITS].data).hexdigest().encode()
    return digest == content[-_NUM_DIGITS:].tobytes()


def as_plain(array: np.ndarray) -> np.ndarray:
    """The array; its bits as integers where NumPy cannot write its dtype, such as bfloat16."""
    if array.dtype.hasobject:
        raise ValueError(f"a file cannot hold an array of {array.dtype.name}.")
    array = np.asarray(array, order="C")
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.isbuiltin == 2 else array


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[io.BufferedRandom]:
    """A temporary file beside `path`, which replaces it at once where the block succeeds."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(temporary, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # the new name is on the disk too
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def lock_directory(directory: Path, argument: str) -> filelock.BaseFileLock:
    """Create a directory where there is none, and lock it until the lock is released or the process ends.

    Args:
        directory: to be written to.
        argument: the name of the argument that names it, for the `OSError` where it is locked, or cannot be written to.
    """
    lock = filelock.FileLock(directory / ".lock", timeout=0)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except NotImplementedError:  # a file system without locks
        pass
    except OSError as error:
        in_use = "is in use: another run writes there at this moment"
        reason = in_use if isinstance(error, filelock.Timeout) else f"cannot be written to: {error.strerror}"
        raise OSError(f"{argument} {directory} {reason}. Choose another directory.") from error
    return lock


# Checkpoints.


def save_checkpoint(directory: Path, step: int, meta: Json, arrays: Arrays) -> None:
    """Write the checkpoint of a step, then remove all but the last two, and the partial files of killed processes."""
    write(directory / f"step-{step:012d}.npz", meta, arrays)
    for old in [*_checkpoints(directory)[:-_NUM_CHECKPOINTS], *directory.glob("step-*.partial")]:
        with contextlib.suppress(OSError):  # it only takes up space
            old.unlink()


def newest_checkpoint(directory: Path, *, rename: bool = False) -> tuple[Json, Arrays] | None:
    """The newest intact checkpoint, or `None`. Damaged ones are passed over with a warning, and renamed if asked."""
    for path in reversed(_checkpoints(directory)):
        try:
            return read(path)
        except DamagedFileError as error:
            warn_caller(RuntimeWarning(f"{error}. The checkpoint before it is used, if there is one."))
            if rename:  # so that it does not count among the last two
                os.replace(path, path.with_name(f"{path.name}.damaged"))
    return None


def remove_checkpoints(directory: Path) -> None:
    """Remove the checkpoints in a directory, and the directory where nothing else is in it."""
    for path in [*directory.glob("step-*.npz*"), directory / ".lock"]:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        directory.rmdir()


def _checkpoints(directory: Path) -> list[Path]:
    """The checkpoints in the order of their steps."""
    return sorted(directory.glob(f"step-{12 * '[0-9]'}.npz"))
