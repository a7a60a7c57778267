"""Reading and writing of files in directories that others may write to, and the versions that results record.

Reading: regular files only, so that no pipe or device blocks the reader, and of a bounded size. Writing: through a
temporary file of an unpredictable name that must not exist, synced and renamed, so that no link is followed and a file
is whole or not there. A directory is locked by the operating system, which releases the lock when a process ends, in
whatever way.
"""

import contextlib
import errno
import json
import os
import platform
import secrets
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not a POSIX system: directories are not locked there
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
"""How the names of temporary files end."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe does not wait for a writer
_LARGEST_TEXT = 2**26  # bytes of a settings file or journal


# Reading.


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; `OSError` where it is a directory, a pipe, a socket or a device."""
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
    """The content of a regular file of at most so many bytes; `ValueError` where it is longer."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} is longer than {most:,} bytes.")
    return content


def read_json(path: Path, most: int = _LARGEST_TEXT) -> Any:
    """The JSON of a regular file of at most so many bytes; `ValueError` for any other content."""
    try:
        return json.loads(read_bytes(path, most))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply.") from error


def machine_memory() -> float:
    """Bytes of memory that this machine has; infinite where it does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


# Writing.


def create_beside(path: Path) -> tuple[BinaryIO, Path]:
    """A new file in the directory of `path`, open for writing, and its name, which nobody can have foreseen."""
    while True:
        place = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{PARTIAL}")
        with contextlib.suppress(FileExistsError):
            return os.fdopen(os.open(place, _NEW, 0o666), "wb"), place


def write_text(path: Path, text: str) -> None:
    """A text file, replaced as a whole."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in place of `path`: a temporary one beside it, synced, and renamed only when all is written."""
    file, place = create_beside(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(place, path)
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make a rename in a directory durable."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_writable(directory: Path) -> None:
    """Make the directory and see that a file can be made in it; nothing that is there is touched."""
    directory.mkdir(parents=True, exist_ok=True)
    file, place = create_beside(directory / "probe")
    file.close()
    place.unlink()


def prepare_directory(directory: Path, what: str = "`--out`", advice: str = "Choose another directory.") -> None:
    """Make the directory and see that it can be written to, before any long work."""
    try:
        check_writable(directory)
    except OSError as error:
        raise OSError(f"{what} {directory} cannot be written to: {error.strerror}. {advice}") from error


# Locks.


class DirectoryLock:
    """A directory that one run at a time writes to.

    The lock is the operating system's (`flock`, on the directory itself or, where a file system locks files alone, on
    a file `.lock` in it). It ends with the process, however that ends: nothing is left behind that would keep the next
    run out. On systems without `flock`, and on file systems without locks, `acquire` always succeeds.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Take the lock; `False` where somebody else has it."""
        if fcntl is None or self._handle is not None:
            return True
        for path, flags in (
            (self.directory, os.O_RDONLY),
            (self.directory / ".lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)),
        ):
            handle = None
            try:
                handle = os.open(path, flags, 0o666)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        """Give the lock back; nothing where it is not held."""
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


_held: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked process holds no lock of its parent's: it may outlive it."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def environment() -> dict[str, str]:
    """Versions and date, for the settings of a result."""
    return {"date": datetime.now(UTC).date().isoformat(), **versions()}


def versions() -> dict[str, str]:
    """Those of Python, of this package and of the libraries that compute its numbers."""
    found = {"python": platform.python_version()}
    for package in ("steinkern", "jax", "jaxlib", "numpy", "optax", "equinox"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from source"
    return found
