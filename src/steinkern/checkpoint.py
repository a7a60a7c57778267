"""Checkpoint files: everything the next step needs, on disk before it is needed.

A checkpoint is one file: a line that names the format, a header in JSON, the bytes of the arrays, and a checksum over
all of it, which tells a whole file from a damaged one. Reading it executes nothing. A file is written beside its final
name, synced, and renamed; the last two are kept, so that damage to one never costs the run. One that is found damaged
is set aside under another name: it takes the place of no whole one.
"""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from ._types import warn_caller

_FORMAT = b"steinkern checkpoint 1\n"
_CHECKSUM = 32  # bytes
_KEPT = 2
_NAME = re.compile(r"step-([0-9]{1,18})\.ckpt")
_LONGEST_HEADER = 2**24
_MOST_AXES = 32  # of a NumPy array, in every version
_LONGEST_AXIS = 2**48
_PIECE = 2**20  # bytes read and hashed at a time
_KINDS = ("bool", "bfloat16", "float16", "float32", "float64", "uint8", "uint16", "uint32", "uint64",
          "int8", "int16", "int32", "int64")  # fmt: skip


class DamagedCheckpoint(ValueError):
    """A checkpoint file that is truncated, altered, or none at all."""


class OtherRunError(ValueError):
    """A checkpoint is of another run than the one that was to go on from it; `what` says in which respect."""

    def __init__(self, text: str, what: str):
        super().__init__(text)
        self.what = what


class Saved(NamedTuple):
    """What a checkpoint holds."""

    step: int
    settings: dict[str, Any]
    """What the run is: where this differs, the checkpoint is of another run."""
    notes: dict[str, Any]
    """What else is worth knowing, such as versions; it may differ."""
    arrays: list[np.ndarray]


class Store:
    """The checkpoints of one run, in a directory of their own.

    Args:
        directory: made where it does not exist.
        settings: what the run is, as JSON; a checkpoint of another run is refused, with the difference named.
    """

    def __init__(self, directory: str | os.PathLike[str], settings: Mapping[str, Any]):
        self.directory = Path(directory)
        text = json.dumps(settings)
        if 2 * len(text) > _LONGEST_HEADER:  # it is there twice, once with the digests of code
            raise ValueError(
                f"`checkpoint` cannot hold what this run is made from: as text it takes {len(text)} bytes, it may take "
                f"{_LONGEST_HEADER // 2}. Give long lists, which functions close over, as arrays."
            )
        self.settings = json.loads(text)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"`checkpoint` {self.directory} cannot be written to: {error.strerror}. Choose another directory."
            ) from error

    def latest(self) -> Saved | None:
        """The newest whole checkpoint, or `None`. A damaged one is set aside with a warning."""
        saved = newest(self.directory, "None is left: the run starts anew", set_aside=True)
        if saved is not None:
            self._check(saved)
        return saved

    def save(self, step: int, arrays: Sequence[np.ndarray], notes: Mapping[str, Any]) -> None:
        """Write a checkpoint, then drop all but the last two. A failure leaves the former ones as they were."""
        path = _path(self.directory, step)
        try:
            write(path, Saved(step, self.settings, dict(notes), list(arrays)))
        except OSError as error:
            raise OSError(
                f"the checkpoint at step {step} could not be written to {self.directory}: {error.strerror}. The last "
                "good one, if there was one, is intact; make room and run the same call again to go on from it."
            ) from error
        # What claims a later step than the run has come to is not of this run's past: it pushes nothing out.
        past = [path for path in _files(self.directory) if _step_of(path) <= step]
        for old in [*past[:-_KEPT], *self.directory.glob("step-*.partial")]:
            old.unlink(missing_ok=True)

    def _check(self, saved: Saved) -> None:
        found = difference(saved.settings, self.settings)
        if found is not None:
            name, before, now = found
            raise OtherRunError(
                f"`checkpoint` {_path(self.directory, saved.step)} is of another run: its {name} is {before}, here it "
                f"is {now}. Run with what it was made from, or choose another directory.",
                f"{name} differs",
            )


def newest(directory: Path, none_left: str = "None is left", *, set_aside: bool = False) -> Saved | None:
    """The newest whole checkpoint in a directory, or `None`. A damaged one is passed over with a warning.

    Args:
        directory: of the checkpoints.
        none_left: what the warning says where all are damaged.
        set_aside: rename damaged ones, so that they stand in no one's way.
    """
    files = _files(directory)
    for number, path in enumerate(reversed(files), start=1):
        try:
            saved = read(path)
            if saved.step != _step_of(path):
                raise DamagedCheckpoint(f"the checkpoint {path} is of step {saved.step}, not of its name's.")
            return saved
        except DamagedCheckpoint as damage:
            text = f"{damage} {'The one before it is used' if number < len(files) else none_left}"
            if set_aside:
                aside = path.with_name(path.name + ".damaged")
                with contextlib.suppress(OSError):  # where it has to stay, it is passed over again
                    os.replace(path, aside)
                text += f"; the file is kept as {aside.name}"
            warn_caller(RuntimeWarning(f"{text}."))
    return None


def _files(directory: Path) -> list[Path]:
    """In the order of their steps."""
    return sorted((path for path in directory.glob("step-*") if _NAME.fullmatch(path.name)), key=_step_of)


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:012d}.ckpt"


def write(path: Path, saved: Saved) -> None:
    """One checkpoint file, through a temporary one, synced before it takes its name."""
    arrays = [np.ascontiguousarray(array).reshape(np.shape(array)) for array in saved.arrays]
    check_kinds(arrays)
    described = [[array.dtype.name, list(array.shape)] for array in arrays]
    content = {"step": saved.step, "settings": saved.settings, "notes": saved.notes, "arrays": described}
    header = json.dumps(content).encode()
    if len(header) > _LONGEST_HEADER:
        raise ValueError(f"a checkpoint's settings may take {_LONGEST_HEADER} bytes, these take {len(header)}.")
    partial = path.with_suffix(".partial")  # of one name: what a kill leaves behind is overwritten, not gathered
    digest = hashlib.sha256()
    try:
        with open(partial, "wb") as file:
            for piece in (_FORMAT, len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays)):
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def read(path: Path) -> Saved:
    """What `write` wrote; `DamagedCheckpoint` where a bit of it is another. Takes little more memory than the file."""
    try:
        with open(path, "rb") as file:
            return _read(file)
    except OSError as error:
        raise DamagedCheckpoint(f"the checkpoint {path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpoint(f"the checkpoint {path} is truncated or altered.") from error


def _read(file: BinaryIO) -> Saved:
    """Any error but an `OSError` says that the file is not as it was written."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(len(_FORMAT) + 8)
    length = int.from_bytes(start[len(_FORMAT) :], "little")
    if not start.startswith(_FORMAT) or len(start) < len(_FORMAT) + 8 or not 0 < length <= _LONGEST_HEADER:
        raise ValueError("no start of a checkpoint")
    header = file.read(length)
    content = json.loads(header)
    step, settings, notes = _count(content["step"]), content["settings"], content["notes"]
    if not (isinstance(settings, dict) and isinstance(notes, dict)):
        raise TypeError("settings and notes are dictionaries")
    kinds = [(jnp.dtype(_known(name)), _shape(shape)) for name, shape in content["arrays"]]
    sizes = [kind.itemsize * math.prod(shape) for kind, shape in kinds]
    if size != len(start) + length + sum(sizes) + _CHECKSUM:  # before anything of that size is read
        raise ValueError("the arrays do not fill the file")
    digest = hashlib.sha256(start + header)
    blocks = [_read_block(file, number, digest) for number in sizes]
    if file.read(_CHECKSUM) != digest.digest():
        raise ValueError("another checksum")
    arrays = [np.frombuffer(block, kind).reshape(shape) for block, (kind, shape) in zip(blocks, kinds, strict=True)]
    return Saved(step, settings, notes, arrays)


def check_kinds(arrays: Iterable[np.ndarray]) -> None:
    """Raise where an array has a type that could not be read again."""
    for array in arrays:
        if array.dtype.name not in _KINDS:
            raise ValueError(
                f"the state of the sampler has an array of {array.dtype.name}; a checkpoint can hold "
                f"{', '.join(_KINDS)}. Run without `checkpoint`, or with a step rule that keeps one of these."
            )


def difference(before: Any, now: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The name of the first place where two JSON values differ, and what stands there in each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            inside = key if not name else f"{name}.{key}"
            found = difference(before.get(key, "absent"), now.get(key, "absent"), inside)
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return next((found for i, (a, b) in pairs if (found := difference(a, b, f"{name}[{i}]")) is not None), None)
    return None if before == now and type(before) is type(now) else (name, before, now)


def _read_block(file: BinaryIO, size: int, digest: Any) -> bytes:
    pieces = []
    for start in range(0, size, _PIECE):
        piece = file.read(min(_PIECE, size - start))
        digest.update(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _step_of(path: Path) -> int:
    name = _NAME.fullmatch(path.name)
    assert name is not None
    return int(name[1])


def _known(name: Any) -> str:
    if name not in _KINDS:
        raise ValueError(name)
    return str(name)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _shape(axes: Any) -> tuple[int, ...]:
    """Bounded before the product is taken: that of many large numbers takes hours."""
    if not isinstance(axes, list) or len(axes) > _MOST_AXES:
        raise ValueError("no shape")
    if any(_count(axis) > _LONGEST_AXIS for axis in axes):
        raise ValueError("too long an axis")
    return tuple(axes)


def _sync_directory(directory: Path) -> None:
    if os.name == "posix":  # the rename itself is durable only then
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
