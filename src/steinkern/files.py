"""Files that are whole or not there, and the versions that belong into them."""

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO


def write_text(path: Path, text: str) -> None:
    """A text file, replaced as a whole."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in place of `path`: a temporary one beside it, synced, and renamed only when all is written."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def prepare_directory(directory: Path, what: str = "`--out`", advice: str = "Choose another directory.") -> None:
    """Make the directory and see that it can be written to, before any long work."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / ".writable", "")
        (directory / ".writable").unlink()
    except OSError as error:
        raise OSError(f"{what} {directory} cannot be written to: {error.strerror}. {advice}") from error


def environment() -> dict[str, str]:
    """Versions and date, for the settings of a result."""
    versions = {}
    for package in ("steinkern", "jax", "jaxlib", "numpy", "optax", "equinox"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "from source"
    return {"date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(), **versions}
