"""The tables of the studies: features, targets and the standard splits.

A data directory holds `uci/NAME.npz` and `covtype/covtype.npz`; a missing file is made from its public original.
Values are as published: nothing is standardised here.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import openpyxl
import pooch
import sklearn.datasets
from jaxtyping import Float64, Integer, Num

from steinkern.core.types import check_choice

_UCI = "https://archive.ics.uci.edu/static/public"
_YEAR_ROWS, _YEAR_TEST_ROWS = 515_345, 51_630
Table = Float64[np.ndarray, "rows columns"]


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

    features: Num[np.ndarray, "rows columns"]
    labels: Integer[np.ndarray, " rows"]


def read_workbook(path: Path, columns: int, first: Sequence[float] | None = None) -> Table:
    """The first `columns` of a sheet, without its header and its blank rows.

    Cells are rounded to the two decimals that are published: they hold more, from the arithmetic that filled them.

    Args:
        path: an xlsx workbook.
        columns: how many to take.
        first: the first row of the sheet to take; by default the first sheet is taken.
    """
    for sheet in openpyxl.load_workbook(path, data_only=True).worksheets:
        rows = [row for row in sheet.iter_rows(min_row=2, max_col=columns, values_only=True) if row[0] is not None]
        if first is None or np.allclose(np.array(rows[0], float), first):
            return np.round(np.array(rows, np.float64), 2)
    raise ValueError(f"{path.name} must have a sheet that begins with {first}.")


_read_text: Callable[..., Table] = partial(np.loadtxt, comments=("%", "@"), ndmin=2, encoding="utf-8")


@dataclass(frozen=True)
class Source:
    """Where a regression comes from, and how its original becomes a table.

    Args:
        url: the public original.
        digest: of the arrays that the published results were computed from; `None` where nobody has them.
        columns: of the original, in the order of the table.
        features: the first so many columns of the table are features, the next one is the target.
        read: from a file to its table.
        member: the file's name, where the original is an archive.
        splits: how many standard splits; none of `year`.
    """

    url: str
    digest: str | None
    columns: Sequence[int]
    features: int
    read: Callable[[Path], Table] = _read_text
    member: str | None = None
    splits: int = 20


SOURCES: Mapping[str, Source] = {
    "boston": Source(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/housing.data",
        "6bbf0eef3252f03c93b73e96f7fbfb5fcc79d319c46021ead720f72bc819c84e",
        range(14),
        13,
    ),
    # Concrete_Data.xls in UCI's archive has more decimals than the table everybody splits; UCI's CSV is that table.
    "concrete": Source(
        f"{_UCI}/165/data.csv",
        "dc6e700cf8739ab47c0989cf684511dd3fa5e37ae086dcd87c70fa62d14e10a9",
        range(9),
        8,
        partial(_read_text, delimiter=",", skiprows=1),
    ),
    # The tenth column, the cooling load, is not used.
    "energy": Source(
        f"{_UCI}/242/energy+efficiency.zip",
        "47067d2f6a74472f20985b49c03c8500345dd5f93db1883492705c59a7538675",
        range(9),
        8,
        partial(read_workbook, columns=9),
        "ENB2012_data.xlsx",
    ),
    "kin8nm": Source(
        "https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff",
        "6ef9879c03355c1585ddf55f9adc2107a5ed8ee709d849f99dc4d251f3ec80ff",
        range(9),
        8,
        partial(_read_text, delimiter=","),
    ),
    "naval": Source(
        f"{_UCI}/316/condition+based+maintenance+of+naval+propulsion+plants.zip",
        "a0d37c79dab2d87574a5490bf164fc8cda3b9f605b7efd8a4d51117e806b5cb0",
        range(18),
        16,
        member="data.txt",
    ),
    # The workbook has the same rows on five sheets, shuffled; the splits are of the one that begins so.
    "power": Source(
        f"{_UCI}/294/combined+cycle+power+plant.zip",
        "bb2d19486c827fb13e9f976607db81a5319e80261bef88933aa72b8c1dbdc87d",
        range(5),
        4,
        partial(read_workbook, columns=5, first=(8.34, 40.77, 1010.84, 90.01, 480.48)),
        "Folds5x2_pp.xlsx",
    ),
    # The target comes first in the originals of protein and year.
    "protein": Source(
        f"{_UCI}/265/physicochemical+properties+of+protein+tertiary+structure.zip",
        "5bc626611e10b09560e0d8419116876bfdd263e7bc24fffc4a646c9b55813c36",
        (*range(1, 10), 0),
        9,
        partial(_read_text, delimiter=",", skiprows=1),
        "CASP.csv",
        5,
    ),
    "wine_red": Source(
        f"{_UCI}/186/wine+quality.zip",
        "01ff24e4b31cdceeef1efd4267256b944f57162db378b1b6578d18d17a919d92",
        range(12),
        11,
        partial(_read_text, delimiter=";", skiprows=1),
        "winequality-red.csv",
    ),
    "yacht": Source(
        f"{_UCI}/243/yacht+hydrodynamics.zip",
        "60e74fdb9451a57e5405e30d0d95ff2d8583cee72166ffa3648b697a13e39858",
        range(7),
        6,
        member="yacht_hydrodynamics.data",
    ),
    "year": Source(
        f"{_UCI}/203/yearpredictionmsd.zip",
        None,
        (*range(1, 91), 0),
        90,
        partial(_read_text, delimiter=","),
        "YearPredictionMSD.txt",
        0,
    ),
}
REGRESSIONS = tuple(SOURCES)


def data_directory(directory: Path | None = None) -> Path:
    """The data directory: the argument, else the variable STEINKERN_DATA, else `steinkern` in the user's cache."""
    return directory or Path(os.environ.get("STEINKERN_DATA") or pooch.os_cache("steinkern")).expanduser()


def path_of(name: str, directory: Path) -> Path:
    """The file of a dataset in a data directory."""
    check_choice("dataset", name, (*REGRESSIONS, "covtype"))
    return directory / ("covtype" if name == "covtype" else "uci") / f"{name}.npz"


def load_regression(name: str, directory: Path | None = None) -> Regression:
    """One of `REGRESSIONS`, from the data directory.

    Args:
        name: for example "boston". "year" has the one split its authors ask for, by position (`year_split`); the
            others have 20 random ones, "protein" 5 (`standard_splits`).
        directory: see `data_directory`.
    """
    path = path_of(name, data_directory(directory))
    if not path.is_file():
        save_arrays(path, _download(name))
    arrays = read_arrays(path)
    data = arrays["data"]
    splits = (arrays["train_idx"], arrays["test_idx"]) if "train_idx" in arrays else year_split(len(data))
    train_rows, test_rows = (rows.astype(np.int64) for rows in splits)
    return Regression(name, data[:, arrays["index_features"]], data[:, arrays["index_target"]], train_rows, test_rows)


def load_covtype(directory: Path | None = None) -> Classification:
    """Covertype: 54 raw features (10 measured, 44 indicators) of 581,012 cells of forest, labels 1 to 7."""
    path = path_of("covtype", data_directory(directory))
    if not path.is_file():
        original = sklearn.datasets.fetch_covtype(data_home=path.parent)
        features = np.asfortranarray(original.data.astype(np.int16))  # columns together: the file is half as large
        save_arrays(path, {"X": features, "label": original.target.astype(np.uint8)})
    arrays = read_arrays(path)
    return Classification(arrays["X"], arrays["label"])


def diabetes() -> Regression:
    """Progression of diabetes (Efron et al., 2004): 442 rows, 10 raw features, 5 standard splits; no download."""
    shipped = sklearn.datasets.load_diabetes(scaled=False)
    return Regression("diabetes", shipped.data.astype(float), shipped.target, *standard_splits(len(shipped.target), 5))


def breast_cancer() -> Classification:
    """Breast cancer Wisconsin (diagnostic): 569 rows, 30 raw features, labels 0 and 1; no download."""
    shipped = sklearn.datasets.load_breast_cancer()
    return Classification(shipped.data, shipped.target)


def standard_splits(
    number_of_rows: int, number_of_splits: int
) -> tuple[Integer[np.ndarray, "splits train"], Integer[np.ndarray, "splits test"]]:
    """The random 90/10 splits of Hernández-Lobato and Adams (2015), order included.

    They are successive permutations from NumPy's legacy generator seeded with 1, whose stream is frozen; the first
    round(0.9 n) rows of each are for training.

    Returns:
        Row indices for training and for testing, one split a row.
    """
    generator = np.random.RandomState(1)  # the published splits were drawn from it
    rows = np.stack([generator.permutation(number_of_rows) for _ in range(number_of_splits)])
    for_training = round(0.9 * number_of_rows)
    return rows[:, :for_training], rows[:, for_training:]


def year_split(number_of_rows: int) -> tuple[Integer[np.ndarray, "1 train"], Integer[np.ndarray, "1 test"]]:
    """The split of YearPredictionMSD, by position so that no artist is on both sides.

    The last 51,630 of the 515,345 rows are for testing. A table of another length is split in the same proportion,
    rounded, with at least one row for testing.
    """
    for_testing = max(1, round(number_of_rows * _YEAR_TEST_ROWS / _YEAR_ROWS))
    rows = np.arange(number_of_rows)[None, :]
    return rows[:, :-for_testing], rows[:, -for_testing:]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file."""
    with np.load(path) as file:
        return dict(file)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file, which appears under its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_file = path.with_suffix(".partial.npz")
    np.savez_compressed(partial_file, **arrays)  # type: ignore[arg-type]  # the stubs take any keyword for allow_pickle
    partial_file.replace(path)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of arrays: of each, by name, a line with name, type and shape, then little-endian bytes in C order."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes(order="C"))
    return total.hexdigest()


def fingerprint(*arrays: np.ndarray) -> str:
    """A short digest of arrays, which identifies a table and its splits."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def _download(name: str) -> dict[str, np.ndarray]:
    """The arrays of a regression's file from its original; `ValueError` where they differ from the published ones."""
    source = SOURCES[name]
    with tempfile.TemporaryDirectory() as directory:
        unzip = None if source.member is None else pooch.Unzip()
        # Nobody publishes digests of UCI's files: `source.digest` is that of the arrays.
        files = np.atleast_1d(pooch.retrieve(source.url, None, path=directory, processor=unzip))
        (original,) = (Path(file) for file in files if source.member in (None, Path(file).name))
        table = source.read(original)[:, source.columns]
    arrays = {
        "data": np.ascontiguousarray(table),
        "index_features": np.arange(source.features, dtype=np.int16),
        "index_target": np.array(source.features, np.int16),
    }
    if source.splits:
        splits = standard_splits(len(table), source.splits)
        arrays |= dict(zip(("train_idx", "test_idx"), (rows.astype(np.uint16) for rows in splits), strict=True))
    if source.digest not in (None, digest_of(arrays)):
        raise ValueError(
            f"{source.url} must hold the {name} of the published results, with the digest {source.digest}, got "
            f"{digest_of(arrays)}. Put {name}.npz into the data directory by hand; docs/data.md has its layout."
        )
    return arrays
