"""Reads the datasets of the experiments: features, targets and the standard splits.

A data directory holds `uci/NAME.npz` and `covtype/covtype.npz`; `steinkern data fetch` fills it. Values are as
published: nothing is standardised here.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Float64, Integer, Num

from ...core.extras import install_command
from ...core.types import check_choice, check_count
from .unpack import read_npz

REGRESSIONS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red", "yacht", "year")
DATASETS = (*REGRESSIONS, "covtype")

_YEAR_ROWS, _YEAR_TEST_ROWS = 515_345, 51_630
_LARGEST = 2**31  # bytes, uncompressed: no archive may ask for more


@dataclass(frozen=True)
class Regression:
    """A table to predict one number from, and its splits: row s of `train_rows` and of `test_rows` is split s."""

    name: str
    features: Float64[np.ndarray, "rows columns"]
    targets: Float64[np.ndarray, " rows"]
    train_rows: Integer[np.ndarray, "splits train"]
    test_rows: Integer[np.ndarray, "splits test"]


@dataclass(frozen=True)
class Classification:
    """A table to predict a class from; the labels are those of the source."""

    name: str
    features: Num[np.ndarray, "rows columns"]
    labels: Integer[np.ndarray, " rows"]


def data_directory(given: Path | None = None) -> Path:
    """The data directory: `given`, else the variable STEINKERN_DATA, else `steinkern` in the user's cache directory."""
    if given is not None:
        return given
    if chosen := os.environ.get("STEINKERN_DATA"):
        return Path(chosen).expanduser()
    return _user_cache() / "steinkern"


def path_of(name: str, directory: Path) -> Path:
    """The file of a dataset in a data directory; an unknown name is an error that lists the known ones."""
    check_choice("dataset", name, DATASETS)
    return directory / ("covtype" if name == "covtype" else "uci") / f"{name}.npz"


def load_regression(name: str, directory: Path | None = None) -> Regression:
    """One of `REGRESSIONS`, from the data directory.

    Args:
        name: for example "boston". "year" has the one split its authors ask for, by position (`year_split`); the
            others have 20 random ones, "protein" 5 (`standard_splits`).
        directory: see `data_directory`.
    """
    check_choice("dataset", name, REGRESSIONS)
    directory = data_directory(directory)
    return as_regression(name, read_arrays(name, directory), path_of(name, directory))


def load_covtype(directory: Path | None = None) -> Classification:
    """Covertype: 54 raw features (10 measured, 44 indicators) of 581,012 cells of forest, labels 1 to 7."""
    directory = data_directory(directory)
    return as_classification("covtype", read_arrays("covtype", directory), path_of("covtype", directory))


def diabetes() -> Regression:
    """Progression of diabetes (Efron et al., 2004): 442 rows, 10 raw features, 5 standard splits; no download."""
    shipped = import_optional("sklearn.datasets").load_diabetes(scaled=False)
    train_rows, test_rows = standard_splits(len(shipped.target), 5)
    return Regression("diabetes", shipped.data.astype(np.float64), shipped.target, train_rows, test_rows)


def breast_cancer() -> Classification:
    """Breast cancer Wisconsin (diagnostic): 569 rows, 30 raw features, labels 0 and 1; no download."""
    shipped = import_optional("sklearn.datasets").load_breast_cancer()
    return Classification("breast_cancer", shipped.data, shipped.target)


def standard_splits(
    number_of_rows: int, number_of_splits: int
) -> tuple[Integer[np.ndarray, "splits train"], Integer[np.ndarray, "splits test"]]:
    """The random 90/10 splits of Hernández-Lobato and Adams (2015), order included.

    They are successive permutations from NumPy's legacy generator seeded with 1, whose stream is frozen; the first
    round(0.9 n) rows of each are for training.

    Returns:
        Row indices for training and for testing, one split a row.
    """
    check_count("number_of_rows", number_of_rows, 5)
    check_count("number_of_splits", number_of_splits)
    generator = np.random.RandomState(1)  # the published splits were drawn from it
    rows = np.stack([generator.permutation(number_of_rows) for _ in range(number_of_splits)])
    for_training = round(0.9 * number_of_rows)
    return rows[:, :for_training], rows[:, for_training:]


def year_split(number_of_rows: int) -> tuple[Integer[np.ndarray, "1 train"], Integer[np.ndarray, "1 test"]]:
    """The split of YearPredictionMSD, by position so that no artist is on both sides.

    The last 51,630 of the 515,345 rows are for testing. A table of another length is split in the same proportion,
    rounded, with at least one row for testing.
    """
    check_count("number_of_rows", number_of_rows, 2)
    for_testing = max(1, round(number_of_rows * _YEAR_TEST_ROWS / _YEAR_ROWS))
    rows = np.arange(number_of_rows)[None, :]
    return rows[:, :-for_testing], rows[:, -for_testing:]


def read_arrays(name: str, directory: Path) -> dict[str, np.ndarray]:
    """All arrays of a dataset's file; says how to get it where it is missing or damaged."""
    path = path_of(name, directory)
    if not path.is_file():
        raise FileNotFoundError(
            f"{name} is not at {path}. Run `steinkern data fetch {name}`, or say where it is with `--data` or the "
            "variable STEINKERN_DATA."
        )
    try:
        return read_npz(path, _LARGEST)
    except PermissionError as error:
        raise PermissionError(f"{path} cannot be read: {error.strerror}.") from error
    # An archive cut short or altered, or another file under this name: each part of the readers of archives, of
    # compressed streams and of array headers has errors of its own for it, a lack of memory among them.
    except Exception as error:
        raise _damage_error(name, path, str(error)) from error


def as_regression(name: str, arrays: Mapping[str, np.ndarray], path: Path) -> Regression:
    """The regression of a file's arrays, checked; `path` is for the errors."""
    data = _array(name, arrays, "data", 2, path)
    columns = _indices(name, arrays, "index_features", 1, data.shape[1], path)
    target = _indices(name, arrays, "index_target", 0, data.shape[1], path)
    if data.dtype != np.float64 or not np.all(np.isfinite(data)):
        raise _damage_error(name, path, "`data` must be finite numbers in double precision")
    if name == "year":
        train_rows, test_rows = year_split(len(data))
    else:
        train_rows = _indices(name, arrays, "train_idx", 2, len(data), path)
        test_rows = _indices(name, arrays, "test_idx", 2, len(data), path)
        if len(train_rows) != len(test_rows) or not _are_partitions(train_rows, test_rows, len(data)):
            raise _damage_error(name, path, "each row of `train_idx` and `test_idx` must share out all rows of `data`")
    return Regression(name, data[:, columns], data[:, int(target)], train_rows, test_rows)


def as_classification(name: str, arrays: Mapping[str, np.ndarray], path: Path) -> Classification:
    """The classification of a file's arrays, checked; `path` is for the errors."""
    features, labels = _array(name, arrays, "X", 2, path), _array(name, arrays, "label", 1, path)
    if len(features) != len(labels) or not np.issubdtype(labels.dtype, np.integer):
        raise _damage_error(name, path, "`label` must hold one whole number for each row of `X`")
    return Classification(name, features, labels)


def import_optional(module: str) -> ModuleType:
    """An optional module; its absence is an error that names the extra it comes with."""
    try:
        return import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module)
        raise ImportError(f"this needs {package}: {install_command('experiments')}") from error


def fingerprint(*arrays: np.ndarray) -> str:
    """A short digest of arrays, which identifies a table and its splits."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _array(name: str, arrays: Mapping[str, np.ndarray], key: str, ndim: int, path: Path) -> np.ndarray:
    if key not in arrays:
        raise _damage_error(name, path, f"it has no array `{key}`, only {', '.join(arrays) or 'none'}")
    if arrays[key].ndim != ndim:
        raise _damage_error(name, path, f"`{key}` must have {ndim} dimensions, has {arrays[key].ndim}")
    return arrays[key]


def _indices(name: str, arrays: Mapping[str, np.ndarray], key: str, ndim: int, below: int, path: Path) -> np.ndarray:
    array = _array(name, arrays, key, ndim, path)
    if not np.issubdtype(array.dtype, np.integer) or array.size == 0 or array.min() < 0 or array.max() >= below:
        raise _damage_error(name, path, f"`{key}` must hold whole numbers from 0 to {below - 1}")
    return array.astype(np.int64)


def _are_partitions(train_rows: np.ndarray, test_rows: np.ndarray, number_of_rows: int) -> bool:
    both = np.sort(np.concatenate([train_rows, test_rows], axis=1), axis=1)
    return both.shape[1] == number_of_rows and bool(np.all(both == np.arange(number_of_rows)))


def _damage_error(name: str, path: Path, what: str) -> ValueError:
    reason = " ".join(what.split()).rstrip(".")
    return ValueError(f"{path} is damaged: {reason}. Delete it and run `steinkern data fetch {name}`.")
