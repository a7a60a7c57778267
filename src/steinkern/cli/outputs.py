"""The files that `steinkern sample` writes: the particles alone, or a directory with the whole result."""

import importlib.util
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np

from ..core.archive import replacing
from ..core.extras import install_command
from ..core.types import Batch, Key
from ..interop._model import model_of
from ..results.result import Result

_ARVIZ_PACKAGES = ("arviz", "h5netcdf", "h5py")


def output_files(out: Path) -> dict[str, Path]:
    """The files of an `--out`, by their names on the terminal.

    Args:
        out: a directory, or a file ending in .npz or .nc for the particles; the page is beside it.
    """
    missing = [name for name in _ARVIZ_PACKAGES if importlib.util.find_spec(name) is None]
    if out.suffix == ".nc" and missing:
        raise ValueError(
            f"`--out` {out} needs {' and '.join(missing)}: {install_command('arviz')}, or write an .npz file."
        )
    if out.suffix in (".npz", ".nc"):
        return {"Particles": out, "Page": out.parent / "index.html"}
    if out.suffix and not out.is_dir():
        raise ValueError(
            f"`--out` must be a directory, or a file ending in .npz or .nc, got {out}. A directory with a dot in its "
            "name must exist."
        )
    files = {"Particles": out / "particles.npz", "Result, for steinkern.load": out / "sample.result"}
    if not missing:
        files["ArviZ"] = out / "posterior.nc"
    return {**files, "Page": out / "index.html"}


def write_files(files: dict[str, Path], result: Result, data: Batch, key: Key, title: str) -> None:
    """Write the files of a run.

    Args:
        files: by `output_files`.
        result: of the run.
        data: of the run.
        key: draws the posterior predictive of a model with observations.
        title: of the page.
    """
    for path in files.values():
        if path.suffix == ".npz":
            _write_npz(path, result)
        elif path.suffix == ".nc":
            _write_arviz(path, result, data, key)
        elif path.suffix == ".result":
            result.save(path)
        else:
            result.report(path.parent, data, title=title)


def _write_arviz(path: Path, result: Result, data: Batch, key: Key) -> None:
    model = model_of(result.target.target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.23 announces ArviZ 1.0 when it is imported
        tree = result.to_arviz(data, key=key if model is not None and model.observed() else None)
    tree["posterior"].attrs["settings"] = json.dumps(dict(result.settings), default=str)
    with replacing(path) as file:
        tree.to_netcdf(file.name, engine="h5netcdf")


def _write_npz(path: Path, result: Result) -> None:
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:  # `np.savez` refuses sites called `file`
        for name, values in result._sites().items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(values), allow_pickle=False)
