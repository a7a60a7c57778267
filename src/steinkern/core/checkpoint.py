"""A directory with the checkpoints of one run.

The two newest checkpoints are kept, so that a damaged file never costs the run. Damaged files are renamed, and do not
count among the two. One process at a time writes to the directory.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint_file import FORMAT, CheckpointContents, DamagedCheckpoint, read, write
from .files import DirectoryLock, check_writable, open_regular
from .types import warn_caller

_KEPT = 2
_NAME = re.compile(r"step-([0-9]{1,18})\.ckpt")
_LEFT_BEHIND = re.compile(r"step-[0-9]{1,18}(\.[0-9a-f]{16})?\.partial")  # temporary files of killed processes
_SET_ASIDE = ".damaged"
_LONGEST_DESCRIPTION = 2**20  # characters of one entry; a function may close over a long list


class CheckpointError(OSError):
    """A checkpoint could not be written, for example because the disk is full; the last good one is intact.

    `result` holds the run's result up to that step, or `None` before the first step.
    """

    result: Any = None


class OtherRunError(ValueError):
    """A checkpoint belongs to another run than the one that resumes from it; `what` names the difference."""

    def __init__(self, text: str, what: str):
        super().__init__(text)
        self.what = what


class CheckpointDirectory:
    """Writes and reads the checkpoints of one run in a directory.

    Args:
        directory: created where it does not exist.
        settings: JSON that identifies the run. A checkpoint with other settings is refused, naming the difference.
        description: JSON that describes the run's inputs. It is written beside the settings and not compared.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: Mapping[str, Any],
        description: Mapping[str, Any] | None = None,
    ):
        self.directory = Path(directory)
        self.settings = json.loads(json.dumps(settings))
        texts = {name: json.dumps(value) for name, value in (description or {}).items()}
        self.description = {
            name: json.loads(text) if len(text) <= _LONGEST_DESCRIPTION else f"{len(text)} characters, not kept"
            for name, text in texts.items()
        }
        self.lock = DirectoryLock(self.directory)
        """Held by the writing process from before `latest` until after the last `save`."""
        try:
            check_writable(self.directory)
        except OSError as error:
            raise OSError(
                f"`checkpoint` {self.directory} cannot be written to: {error.strerror}. Choose another directory."
            ) from error

    def latest(self) -> CheckpointContents | None:
        """The newest intact checkpoint, or `None`. Damaged files are renamed with a warning."""
        saved = newest(self.directory, "None is left: the run starts anew", set_aside=True)
        if saved is not None:
            self._check(saved)
        return saved

    def save(self, step: int, arrays: Sequence[np.ndarray], notes: Mapping[str, Any]) -> None:
        """Write a checkpoint, then remove all but the last two. A failure leaves the existing ones unchanged."""
        path = _path(self.directory, step)
        try:
            write(path, CheckpointContents(step, {**self.settings, **self.description}, dict(notes), list(arrays)))
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint at step {step} could not be written to {self.directory}: {error.strerror}. The last "
                "good one, if there was one, is intact; make room and run the same call again to go on from it. "
                "`result` of this error is the result so far."
            ) from error
        # Files of later steps than this one are not counted among the checkpoints to keep.
        past = [path for path in _files(self.directory) if _step_of(path) <= step]
        left_behind = [path for path in self.directory.glob("step-*.partial") if _LEFT_BEHIND.fullmatch(path.name)]
        for old in [*past[:-_KEPT], *left_behind]:
            with contextlib.suppress(OSError):  # a file that cannot be removed only takes up space
                old.unlink()

    def _check(self, saved: CheckpointContents) -> None:
        compared = {name: saved.settings[name] for name in self.settings if name in saved.settings}
        found = difference(compared, self.settings)
        if found is not None:
            name, before, now = found
            raise OtherRunError(
                f"`checkpoint` {_path(self.directory, saved.step)} is of another run: its {name} is {before}, here it "
                f"is {now}. Run with what it was made from, or choose another directory.",
                f"{name} differs",
            )


def newest(
    directory: Path,
    none_left: str = "None is left",
    *,
    set_aside: bool = False,
    most: float | None = None,
    tries: int | None = None,
) -> CheckpointContents | None:
    """The newest intact checkpoint in a directory, or `None`. Damaged files are skipped with a warning.

    Args:
        directory: the directory of the checkpoints.
        none_left: the end of the warning where all files are damaged.
        set_aside: rename damaged files, so that later calls do not read them again.
        most: the largest file size in bytes; the machine's memory by default.
        tries: the largest number of files to read, the newest first; all by default.
    """
    named = _named(directory)[-tries if tries else 0 :]
    for number, path in enumerate(reversed(named), start=1):
        try:
            saved = read(path, most)
            if saved.step != _step_of(path):
                raise DamagedCheckpoint(
                    f"the checkpoint {path} holds step {saved.step}, which is not the step in its name."
                )
            return saved
        except DamagedCheckpoint as damage:
            text = f"{damage} {'The one before it is used' if number < len(named) else none_left}"
            if set_aside:
                aside = path.with_name(path.name + _SET_ASIDE)
                while os.path.lexists(aside):  # keeps the files renamed before
                    aside = aside.with_name(aside.name + _SET_ASIDE)
                with contextlib.suppress(OSError):  # a file that cannot be renamed is skipped again next time
                    os.replace(path, aside)
                text += f"; the file is kept as {aside.name}"
            warn_caller(RuntimeWarning(f"{text}."))
    return None


def remove_run(directory: Path) -> None:
    """Remove the checkpoints in a directory, and the directory if nothing else is in it.

    A file is removed if it is named like a checkpoint (intact, renamed as damaged, or temporary) and starts with the
    checkpoint header. Other files stay. `OSError` where another process holds the lock of the directory.
    """
    with DirectoryLock(directory) as lock:
        if directory.is_dir() and not lock.acquire():
            raise OSError(busy(directory))
        for path in directory.glob("step-*"):
            name = path.name.partition(_SET_ASIDE)[0]
            if (_NAME.fullmatch(name) or _LEFT_BEHIND.fullmatch(name)) and _is_ours(path):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the directory is not empty, or does not exist
            directory.rmdir()


def busy(directory: Path) -> str:
    """The error message for a directory that another process has locked."""
    return (
        f"`checkpoint` {directory} is in use: another run writes its checkpoints there at this moment. Wait for it to "
        "end, or choose another directory."
    )


def _is_ours(path: Path) -> bool:
    """Whether a file starts with the checkpoint header, or a truncated one; only temporary and damaged may be empty."""
    try:
        with open_regular(path) as file:
            head = file.read(len(FORMAT))
        return FORMAT.startswith(head) and bool(head or not _NAME.fullmatch(path.name))
    except OSError:
        return False


def _named(directory: Path) -> list[Path]:
    """All paths named like a checkpoint, whatever they hold, in the order of their steps."""
    return sorted((path for path in directory.glob("step-*") if _NAME.fullmatch(path.name)), key=_step_of)


def _files(directory: Path) -> list[Path]:
    """The paths of `_named` that are files."""
    return [path for path in _named(directory) if path.is_file()]


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:012d}.ckpt"


def difference(before: Any, now: Any) -> tuple[str, Any, Any] | None:
    """The path of the first difference between two JSON values, with both values there; `None` where they agree."""
    return next(differences(before, now), None)


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The path of every difference between two JSON values, with both values there."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            inside = key if not name else f"{name}.{key}"
            yield from differences(before.get(key, "absent"), now.get(key, "absent"), inside)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{name}[{place}]")
    elif before != now or type(before) is not type(now):
        yield name, before, now


def _step_of(path: Path) -> int:
    name = _NAME.fullmatch(path.name)
    assert name is not None
    return int(name[1])
