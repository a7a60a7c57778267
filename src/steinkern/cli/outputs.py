"""The files that `steinkern sample` writes: the particles alone, or a directory with the whole result."""

import errno
import importlib.util
import json
import os
import tempfile
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.extras import install_command
from ..core.files import replace_file, replacing
from ..core.types import Batch
from ..results.result import Result
from . import run

_SUFFIXES = (".npz", ".nc")
_NEEDED_FOR_ARVIZ = ("arviz", "h5netcdf", "h5py")


@dataclass(frozen=True)
class Outputs:
    """The files of a run, whose page and checkpoints go into the same directory."""

    given: Path
    """The value of `--out`."""
    particles: Path
    result: Path | None = None
    """For `steinkern.load`; only where `--out` is a directory."""
    arviz: Path | None = None
    """Only where `--out` is a directory and ArviZ is installed."""

    @classmethod
    def of(cls, out: Path) -> "Outputs":
        """The files of an `--out`, checked before the run: it is a directory, or a file ending in .npz or .nc."""
        _check_path(out)
        if out.suffix in _SUFFIXES:
            outputs = cls(out, out)
            if out.suffix == ".nc" and (missing := _missing()):
                raise ValueError(
                    f"`--out` {out} needs {' and '.join(missing)}: {install_command('arviz')}, or write an .npz file."
                )
        elif out.suffix and not out.is_dir():
            raise ValueError(
                f"`--out` must be a directory, or a file ending in .npz or .nc, got {out}. A directory with a dot in "
                "its name must exist."
            )
        else:
            arviz = None if _missing() else out / "posterior.nc"
            outputs = cls(out, out / "particles.npz", out / "sample.result", arviz)
        for path in (*outputs.files, outputs.directory / run.NAME):
            if path.is_dir():
                raise ValueError(f"`--out` {out} cannot be written: {path} is a directory. Choose another one.")
        return outputs

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return self.particles.parent

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a run replaces, the page among them."""
        written = (self.particles, self.result, self.arviz, self.directory / run.PAGE)
        return tuple(path for path in written if path is not None)

    def check_replaced(self, allowed: bool) -> None:
        """Raise where existing files would be replaced, unless that is `allowed` and a recorded run wrote them."""
        there = next((path for path in self.files if os.path.lexists(path)), None)
        if there is not None and not allowed:
            raise ValueError(
                f"`--out` {self.given} would replace what is there, {there}: give --restart to begin anew in its "
                "place, or an --out in another directory."
            )
        written = run.written_files(self.directory)
        foreign = [
            path
            for path in self.files
            if os.path.lexists(path) and (written is None or (written and path.name not in written))
        ]
        if foreign:
            raise ValueError(
                f"`--out` {self.given} would replace {foreign[0]}, which no recorded run wrote. Move it away, or give "
                "an --out in another directory."
            )

    def write(self, result: Result, data: Batch, key: Any) -> None:
        """Write all files but the page.

        Args:
            result: of the run.
            data: of the run.
            key: draws the posterior predictive of a model with observations.
        """
        if self.particles.suffix == ".nc":
            _write_arviz(self.particles, result, data, key)
        else:
            _write_npz(self.particles, result)
        if self.result is not None:
            result.save(self.result)
        if self.arviz is not None:
            _write_arviz(self.arviz, result, data, key)

    def in_lines(self) -> str:
        """What was written, a line for each file."""
        named = {"Particles": self.particles, "Result, for steinkern.load": self.result, "ArviZ": self.arviz}
        lines = {**named, "Page": self.directory / run.PAGE}
        return "\n".join(f"{name}: {path}" for name, path in lines.items() if path is not None)


def _check_path(out: Path) -> None:
    """Raise where the system accepts no such path: it is too long, or has characters that names cannot have."""
    try:
        os.lstat(out / "particles.npz")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError(f"`--out` must be a shorter path, got one of {len(str(out)):,} characters.") from error
    except ValueError as error:  # a null character, or half of a surrogate pair
        raise ValueError(f"`--out` must be a path, got {str(out)!a}.") from error


def _missing() -> list[str]:
    return [name for name in _NEEDED_FOR_ARVIZ if importlib.util.find_spec(name) is None]


def _write_arviz(path: Path, result: Result, data: Batch, key: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.23 announces ArviZ 1.0 when it is imported
        tree = result.to_arviz(data, key=key)
    tree["posterior"].attrs["settings"] = json.dumps(dict(result.settings), default=str)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}.") as scratch:
        place = Path(scratch) / path.name
        tree.to_netcdf(str(place), engine="h5netcdf")
        replace_file(place, path)


def _write_npz(path: Path, result: Result) -> None:
    sites = {name: np.asarray(values) for name, values in result.target.sites(result.particles).items()}
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:  # `np.savez` does not accept all names
        for name, values in sites.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
