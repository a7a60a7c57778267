"""Checkpoints of a run, in a directory of their own.

The last two are kept, so that damage to one never costs the run. One that is found damaged is set aside under another
name: it takes the place of no whole one. One process at a time writes to a directory.
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
_LEFT_BEHIND = re.compile(r"step-[0-9]{1,18}(\.[0-9a-f]{16})?\.partial")  # by a process that was killed
_SET_ASIDE = ".damaged"
_LONGEST_DESCRIPTION = 2**20  # of one part: a long list that a function closes over


class CheckpointError(OSError):
    """A checkpoint could not be written, for want of room for example; the last good one is intact.

    `result` is what the run had when it ended, or `None` where it had not begun.
    """

    result: Any = None


class OtherRunError(ValueError):
    """A checkpoint is of another run than the one that was to go on from it; `what` says in which respect."""

    def __init__(self, text: str, what: str):
        super().__init__(text)
        self.what = what


class CheckpointDirectory:
    """The checkpoints of one run, in a directory of their own.

    Args:
        directory: made where it does not exist.
        settings: what the run is, as JSON; a checkpoint of another run is refused, with the difference named.
        description: what the run is made from, as JSON: written beside the settings and not compared.
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
        """Held by the process that writes, from before `latest` to after the last `save`."""
        try:
            check_writable(self.directory)
        except OSError as error:
            raise OSError(
                f"`checkpoint` {self.directory} cannot be written to: {error.strerror}. Choose another directory."
            ) from error

    def latest(self) -> CheckpointContents | None:
        """The newest whole checkpoint, or `None`. A damaged one is set aside with a warning."""
        saved = newest(self.directory, "None is left: the run starts anew", set_aside=True)
        if saved is not None:
            self._check(saved)
        return saved

    def save(self, step: int, arrays: Sequence[np.ndarray], notes: Mapping[str, Any]) -> None:
        """Write a checkpoint, then drop all but the last two. A failure leaves the former ones as they were."""
        path = _path(self.directory, step)
        try:
            write(path, CheckpointContents(step, {**self.settings, **self.description}, dict(notes), list(arrays)))
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint at step {step} could not be written to {self.directory}: {error.strerror}. The last "
                "good one, if there was one, is intact; make room and run the same call again to go on from it. "
                "`result` of this error holds what the run had."
            ) from error
        # What claims a later step than the run has come to is not of this run's past: it pushes nothing out.
        past = [path for path in _files(self.directory) if _step_of(path) <= step]
        left_behind = [path for path in self.directory.glob("step-*.partial") if _LEFT_BEHIND.fullmatch(path.name)]
        for old in [*past[:-_KEPT], *left_behind]:
            with contextlib.suppress(OSError):  # a file that cannot be removed costs room, not the run
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
    """The newest whole checkpoint in a directory, or `None`. A damaged one is passed over with a warning.

    Args:
        directory: of the checkpoints.
        none_left: what the warning says where all are damaged.
        set_aside: rename damaged ones, so that they stand in no one's way.
        most: bytes that a file may have; by default as many as the machine has memory.
        tries: how many files to read at most, the newest first; all by default.
    """
    named = _named(directory)[-tries if tries else 0 :]
    for number, path in enumerate(reversed(named), start=1):
        try:
            saved = read(path, most)
            if saved.step != _step_of(path):
                raise DamagedCheckpoint(f"the checkpoint {path} is of step {saved.step}, not of its name's.")
            return saved
        except DamagedCheckpoint as damage:
            text = f"{damage} {'The one before it is used' if number < len(named) else none_left}"
            if set_aside:
                aside = path.with_name(path.name + _SET_ASIDE)
                while os.path.lexists(aside):  # what was set aside before stays
                    aside = aside.with_name(aside.name + _SET_ASIDE)
                with contextlib.suppress(OSError):  # where it has to stay, it is passed over again
                    os.replace(path, aside)
                text += f"; the file is kept as {aside.name}"
            warn_caller(RuntimeWarning(f"{text}."))
    return None


def remove_run(directory: Path) -> None:
    """Remove the checkpoints in a directory, and the directory if nothing else is in it.

    A file is removed where it has the name of a checkpoint, whole, set aside or half written, and begins as one does.
    Everything else stays. `OSError` where another process writes to the directory.
    """
    with DirectoryLock(directory) as lock:
        if directory.is_dir() and not lock.acquire():
            raise OSError(busy(directory))
        for path in directory.glob("step-*"):
            name = path.name.partition(_SET_ASIDE)[0]
            if (_NAME.fullmatch(name) or _LEFT_BEHIND.fullmatch(name)) and _is_ours(path):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not empty, or not there
            directory.rmdir()


def busy(directory: Path) -> str:
    """What to say of a directory that another process has locked."""
    return (
        f"`checkpoint` {directory} is in use: another run writes its checkpoints there at this moment. Wait for it to "
        "end, or choose another directory."
    )


def _is_ours(path: Path) -> bool:
    """Whether a file begins as a checkpoint does, as far as it goes; a whole one has a beginning."""
    try:
        with open_regular(path) as file:
            head = file.read(len(FORMAT))
        return FORMAT.startswith(head) and bool(head or not _NAME.fullmatch(path.name))
    except OSError:
        return False


def _named(directory: Path) -> list[Path]:
    """What has the name of a checkpoint, whatever it is, in the order of the steps."""
    return sorted((path for path in directory.glob("step-*") if _NAME.fullmatch(path.name)), key=_step_of)


def _files(directory: Path) -> list[Path]:
    """The files among them."""
    return [path for path in _named(directory) if path.is_file()]


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:012d}.ckpt"


def difference(before: Any, now: Any) -> tuple[str, Any, Any] | None:
    """The name of the first place where two JSON values differ, and what stands there in each."""
    return next(differences(before, now), None)


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The name of every place where two JSON values differ, and what stands there in each."""
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
