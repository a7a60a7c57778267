"""The file format of checkpoints and of saved results.

One file: a line that names the format, a header in JSON, the bytes of the arrays, and a checksum over all of it.
Reading executes no code, accepts regular files only, and bounds every length before allocating. Writing is atomic.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from .files import machine_memory, open_regular, replacing

_FIRST_LINES = {"checkpoint": b"steinkern checkpoint 1\n", "result": b"steinkern result 1\n"}
FORMAT = _FIRST_LINES["checkpoint"]
_CHECKSUM = 32  # bytes
_LONGEST_HEADER = 2**24
_MOST_ARRAYS = 2**16
MOST_AXES = 32  # of a NumPy array, in every version of NumPy
LONGEST_AXIS = 2**48
_PIECE = 2**20  # bytes read and hashed at a time
_KINDS = ("bool", "bfloat16", "float16", "float32", "float64", "uint8", "uint16", "uint32", "uint64",
          "int8", "int16", "int32", "int64")  # fmt: skip


class DamagedCheckpoint(ValueError):
    """A checkpoint or saved result is truncated or altered, or the file is not one."""


class CheckpointContents(NamedTuple):
    """The contents of one checkpoint file."""

    step: int
    settings: dict[str, Any]
    """The settings that identify the run, and the description of its inputs."""
    notes: dict[str, Any]
    """Further information, such as versions, which may differ on resuming."""
    arrays: list[np.ndarray]


def write(path: Path, saved: CheckpointContents, kind: str = "checkpoint") -> None:
    """Write a checkpoint, or a file of another kind in the same format, atomically."""
    arrays = [np.ascontiguousarray(array).reshape(np.shape(array)) for array in saved.arrays]
    check_kinds(arrays)
    described = [[array.dtype.name, list(array.shape)] for array in arrays]
    content = {"step": saved.step, "settings": saved.settings, "notes": saved.notes, "arrays": described}
    header = json.dumps(content).encode()
    if len(header) > _LONGEST_HEADER:
        raise ValueError(f"a {kind}'s settings may take {_LONGEST_HEADER} bytes, these take {len(header)}.")
    digest = hashlib.sha256()
    with replacing(path) as file:
        start = [_FIRST_LINES[kind], len(header).to_bytes(8, "little"), header]
        for piece in (*start, *(array.tobytes() for array in arrays)):
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())


def read(path: Path, most: float | None = None, kind: str = "checkpoint") -> CheckpointContents:
    """Read a checkpoint file and verify its checksum; `DamagedCheckpoint` where any bit has changed.

    Takes little more memory than the file has bytes.

    Args:
        path: of a regular file.
        most: the largest file size in bytes; the machine's memory by default.
        kind: that of the file, as it was written.
    """
    most = machine_memory() if most is None else most
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DamagedCheckpoint(
                    f"the {kind} {path} has {size:,} bytes, more than the {most:,.0f} for which there is memory."
                )
            _check_first_line(file, path, kind)
            return _read(file, _FIRST_LINES[kind])
    except DamagedCheckpoint:
        raise
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "there is not enough memory"
        raise DamagedCheckpoint(f"the {kind} {path} cannot be read: {reason}.") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpoint(f"the {kind} {path} is truncated or altered.") from error


def _check_first_line(file: BinaryIO, path: Path, kind: str) -> None:
    """Raise where a file is of another kind, or none of steinkern's; one that is cut short is left to `_read`."""
    start = file.read(max(map(len, _FIRST_LINES.values())))
    file.seek(0)
    for name, line in _FIRST_LINES.items():
        if name != kind and start.startswith(line):
            raise DamagedCheckpoint(f"{path} is a {name}, not a {kind}.")
    expected = _FIRST_LINES[kind]
    if not start.startswith(expected[: len(start)]) and not start.startswith(b"steinkern "):
        raise DamagedCheckpoint(f"the {kind} {path} is truncated or altered, or no file of steinkern.")


def _read(file: BinaryIO, first: bytes) -> CheckpointContents:
    """Parse an open file whose first line is `first`; any error but an `OSError` means that the file is damaged."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(len(first) + 8)
    length = int.from_bytes(start[len(first) :], "little")
    if not start.startswith(first) or len(start) < len(first) + 8 or not 0 < length <= _LONGEST_HEADER:
        raise ValueError("no start of a checkpoint")
    header = file.read(length)
    content = json.loads(header)
    step, settings, notes = _count(content["step"]), content["settings"], content["notes"]
    if not (isinstance(settings, dict) and isinstance(notes, dict)):
        raise TypeError("settings and notes are dictionaries")
    if len(content["arrays"]) > _MOST_ARRAYS:
        raise ValueError("too many arrays")
    kinds = [(jnp.dtype(_check_kind(name)), _shape(shape)) for name, shape in content["arrays"]]
    sizes = [kind.itemsize * math.prod(shape) for kind, shape in kinds]
    if size != len(start) + length + sum(sizes) + _CHECKSUM:  # checked before the arrays are read
        raise ValueError("the arrays do not fill the file")
    digest = hashlib.sha256(start + header)
    blocks = [_read_block(file, number, digest) for number in sizes]
    if file.read(_CHECKSUM) != digest.digest():
        raise ValueError("another checksum")
    arrays = [np.frombuffer(block, kind).reshape(shape) for block, (kind, shape) in zip(blocks, kinds, strict=True)]
    return CheckpointContents(step, settings, notes, arrays)


def check_kinds(arrays: Iterable[np.ndarray]) -> None:
    """Raise where an array has a dtype that the file format cannot hold."""
    for array in arrays:
        if array.dtype.name not in _KINDS:
            raise ValueError(
                f"the state of the sampler has an array of {array.dtype.name}; a checkpoint can hold "
                f"{', '.join(_KINDS)}. Run without `checkpoint`, or with a step rule that keeps one of these."
            )


def _read_block(file: BinaryIO, size: int, digest: Any) -> bytes:
    pieces = []
    for start in range(0, size, _PIECE):
        piece = file.read(min(_PIECE, size - start))
        digest.update(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _check_kind(name: Any) -> str:
    if name not in _KINDS:
        raise ValueError(name)
    return str(name)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _shape(axes: Any) -> tuple[int, ...]:
    """A shape from the header. Its axes are bounded first, because the product of many huge integers takes hours."""
    if not isinstance(axes, list) or len(axes) > MOST_AXES:
        raise ValueError("no shape")
    if any(_count(axis) > LONGEST_AXIS for axis in axes):
        raise ValueError("too long an axis")
    return tuple(axes)
