"""The files that `steinkern sample` writes: the particles alone, or a directory with the whole result."""

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

from ..core.archive import replacing
from ..core.extras import install_command
from ..core.types import Batch
from ..results.result import Result

PAGE = "index.html"
_SUFFIXES = (".npz", ".nc")
_ARVIZ_PACKAGES = ("arviz", "h5netcdf", "h5py")


@dataclass(frozen=True)
class Outputs:
    """The files of a run; its page and checkpoints are in the same directory."""

    out: Path
    """The value of `--out`."""
    particles: Path
    result: Path | None = None
    """For `steinkern.load`; only where `--out` is a directory."""
    arviz: Path | None = None
    """Only where `--out` is a directory and ArviZ is installed."""

    @classmethod
    def of(cls, out: Path) -> "Outputs":
        """The files of an `--out`, checked before the run: it is a directory, or a file ending in .npz or .nc."""
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
        for path in outputs.files.values():
            if path.is_dir():
                raise ValueError(f"`--out` {out} cannot be written: {path} is a directory. Choose another one.")
        return outputs

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return self.particles.parent

    @property
    def checkpoint(self) -> Path:
        """The directory of the run's checkpoints."""
        return self.directory / "checkpoint"

    @property
    def files(self) -> dict[str, Path]:
        """The files that a run replaces, by their names on the terminal."""
        named = {
            "Particles": self.particles,
            "Result, for steinkern.load": self.result,
            "ArviZ": self.arviz,
            "Page": self.directory / PAGE,
        }
        return {name: path for name, path in named.items() if path is not None}

    def check_absent(self) -> None:
        """Raise where a file exists that would be replaced."""
        existing = next((path for path in self.files.values() if os.path.lexists(path)), None)
        if existing is not None:
            raise ValueError(
                f"`--out` {self.out} would replace {existing}: give --restart to start again and replace it, or an "
                "--out in another directory."
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


def _missing() -> list[str]:
    return [name for name in _ARVIZ_PACKAGES if importlib.util.find_spec(name) is None]


def _write_arviz(path: Path, result: Result, data: Batch, key: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.23 announces ArviZ 1.0 when it is imported
        tree = result.to_arviz(data, key=key)
    tree["posterior"].attrs["settings"] = json.dumps(dict(result.settings), default=str)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}.") as scratch:
        temporary = Path(scratch) / path.name
        tree.to_netcdf(str(temporary), engine="h5netcdf")
        with replacing(path) as file:
            file.write(temporary.read_bytes())


def _write_npz(path: Path, result: Result) -> None:
    sites = {name: np.asarray(values) for name, values in result._sites().items()}
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:  # `np.savez` refuses sites called `file`
        for name, values in sites.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
