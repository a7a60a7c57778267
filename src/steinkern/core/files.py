"""Bounded reads, atomic writes and directory locks, safe in directories that other users may write to.

Reads accept regular files of a bounded size only, so that no pipe or device blocks the reader. Writes go to a new
temporary file with an unpredictable name, which is synced and renamed: no link is followed, and no partial file is
left under the final name. Locks belong to the operating system, which releases them however the process ends.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import secrets
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module elsewhere
try:
    import msvcrt
except ImportError:  # not Windows
    msvcrt = None  # type: ignore[assignment]  # a module there

PARTIAL = ".partial"
"""The suffix of temporary files."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # opening a pipe does not block
_LARGEST_TEXT = 2**26  # the most bytes of a settings file or journal
_ATTEMPTS = 50 if os.name == "nt" else 1  # Windows replaces no file while another process has it open
_PAUSE = 0.02  # seconds between two attempts


# Reading.


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; `OSError` for a directory, a pipe, a socket or a device."""
    handle = os.open(path, _READ)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: Path, most: int = _LARGEST_TEXT) -> bytes:
    """The content of a regular file of at most `most` bytes; `ValueError` where it is longer."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} is longer than {most:,} bytes.")
    return content


def read_json(path: Path, most: int = _LARGEST_TEXT) -> Any:
    """The parsed JSON of a regular file of at most `most` bytes; `ValueError` for any other content."""
    try:
        return json.loads(read_bytes(path, most))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply.") from error


def machine_memory() -> float:
    """The physical memory of this machine in bytes; infinite where the system does not report it."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return _windows_memory()


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows: its size, a load in percent, and seven numbers of bytes, the physical memory first."""

    _fields_ = (("size", ctypes.c_uint32), ("load", ctypes.c_uint32), ("bytes", ctypes.c_uint64 * 7))


def _windows_memory() -> float:
    """The physical memory in bytes by `GlobalMemoryStatusEx`; infinite on other systems."""
    library = getattr(ctypes, "windll", None)
    if library is None:
        return float("inf")
    status = _MemoryStatus(ctypes.sizeof(_MemoryStatus))
    reported = library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return float(status.bytes[0]) if reported else float("inf")


# Writing.


def create_beside(path: Path) -> tuple[BinaryIO, Path]:
    """Create a file with an unpredictable name in the directory of `path`; the open file and its path."""
    while True:
        place = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{PARTIAL}")
        with contextlib.suppress(FileExistsError):
            return os.fdopen(os.open(place, _NEW, 0o666), "wb"), place


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace `path` atomically: yields a temporary file beside it, synced and renamed if the block succeeds."""
    file, place = create_beside(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace_file(place, path)
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def replace_file(place: Path, path: Path) -> None:
    """Rename `place` to `path`. On Windows wait up to a second for readers of `path` to close it."""
    for attempt in range(_ATTEMPTS):
        try:
            os.replace(place, path)
        except PermissionError:
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _sync_directory(directory: Path) -> None:
    """Make a rename in a directory durable."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_writable(directory: Path) -> None:
    """Create the directory and check that a file can be created in it; existing files are not touched."""
    directory.mkdir(parents=True, exist_ok=True)
    file, place = create_beside(directory / "probe")
    file.close()
    place.unlink()


def prepare_directory(directory: Path, what: str = "`--out`", advice: str = "Choose another directory.") -> None:
    """Create the directory and check that it is writable, before any long computation."""
    try:
        check_writable(directory)
    except OSError as error:
        raise OSError(f"{what} {directory} cannot be written to: {error.strerror}. {advice}") from error


# Locks.


class DirectoryLock:
    """An exclusive lock on a directory, so that one run at a time writes to it.

    The lock is the operating system's: `flock` on the directory itself or, on file systems that lock files only, on
    the file `.lock` in it; on Windows `locking` on that file. It is released however the process ends, so a killed run
    does not block the next one. On file systems without locks `acquire` always succeeds.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Take the lock; `False` where another holder has it."""
        if self._handle is not None:
            return True
        for path, flags in (
            (self.directory, os.O_RDONLY),
            (self.directory / ".lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)),
        ):
            handle = None
            try:
                handle = os.open(path, flags, 0o666)
                _lock(handle)
            except OSError as error:
                if handle is not None:
                    os.close(handle)
                if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) and handle is not None:
                    return False
            else:
                self._handle = handle
                _held.add(self)
                return True
        return True

    def release(self) -> None:
        """Release the lock if it is held."""
        handle, self._handle = self._handle, None
        _held.discard(self)
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._handle is not None:
            self.release()


def _lock(handle: int) -> None:
    """Lock an open file or directory without waiting; `OSError` where another holder has it, or where that fails."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]  # on Windows only
    else:
        raise OSError(errno.ENOTSUP, "This system has no locks")


_held: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Release the parent's locks in a forked process, which may outlive its parent."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def environment() -> dict[str, str]:
    """The date and the versions in use, for the settings of a result."""
    return {"date": datetime.now(UTC).date().isoformat(), **versions()}


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of the numerical libraries."""
    found = {"python": platform.python_version()}
    for package in ("steinkern", "jax", "jaxlib", "numpy", "optax", "equinox"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from source"
    return found
