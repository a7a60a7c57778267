"""Fetching the datasets of the experiments from their public originals, and checking what is there.

The digests below are those of the data that the published numbers of this project were computed from. An original is
parsed in memory and its digest compared before anything is written, so a good file is never replaced by another.
"""

import hashlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...core.files import prepare_directory, replacing
from ...core.types import check_choice
from .datasets import as_classification, as_regression, import_optional, path_of, read_arrays
from .parsers import arff_table, covertype, regression, text_table, workbook_table

_RETRIES = 3
_UCI = "https://archive.ics.uci.edu/static/public"


@dataclass(frozen=True)
class Source:
    """Where a dataset comes from, and how its original becomes the arrays of its file.

    Args:
        url: the public original.
        parse: from the downloaded file, and the most bytes that may come out of it, to the arrays.
        digest: what `digest` says of these arrays; None where nobody has published them.
        checksum: the original's SHA-256, where a maintained library publishes it.
        largest: bytes that the original may have, as it is downloaded and as it is unpacked.
    """

    url: str
    parse: Callable[[Path, int], dict[str, np.ndarray]]
    digest: str | None = None
    checksum: str | None = None
    largest: int = 2**26


@dataclass(frozen=True)
class Status:
    """What lies in a data directory under a dataset's name.

    Args:
        name: the dataset.
        state: "absent", "ok", "unknown" (readable, but there is no digest to compare with), "differs" or "damaged".
        bytes: of the file.
        rows: of the table.
        detail: a sentence where something is wrong.
    """

    name: str
    state: str
    bytes: int = 0
    rows: int = 0
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether there is a file that should not be used."""
        return self.state in ("differs", "damaged")


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of arrays: of each, by name, a line with name, type and shape, then little-endian bytes in C order."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes(order="C"))
    return total.hexdigest()


SOURCES: Mapping[str, Source] = {
    "boston": Source(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/housing.data",
        partial(regression, read=text_table, order=range(14), features=range(13), target=13),
        "6bbf0eef3252f03c93b73e96f7fbfb5fcc79d319c46021ead720f72bc819c84e",
    ),
    # Concrete_Data.xls in UCI's archive has more decimals than the table everybody splits; UCI's CSV is that table.
    "concrete": Source(
        f"{_UCI}/165/data.csv",
        partial(
            regression, read=partial(text_table, delimiter=",", header=1), order=range(9), features=range(8), target=8
        ),
        "dc6e700cf8739ab47c0989cf684511dd3fa5e37ae086dcd87c70fa62d14e10a9",
    ),
    "energy": Source(
        f"{_UCI}/242/energy+efficiency.zip",
        partial(
            regression,
            member="ENB2012_data.xlsx",
            read=partial(workbook_table, columns=9, decimals=2),  # the tenth column, cooling load, is not used
            order=range(9),
            features=range(8),
            target=8,
        ),
        "47067d2f6a74472f20985b49c03c8500345dd5f93db1883492705c59a7538675",
    ),
    "kin8nm": Source(
        "https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff",
        partial(regression, read=arff_table, order=range(9), features=range(8), target=8),
        "6ef9879c03355c1585ddf55f9adc2107a5ed8ee709d849f99dc4d251f3ec80ff",
    ),
    "naval": Source(
        f"{_UCI}/316/condition+based+maintenance+of+naval+propulsion+plants.zip",
        partial(regression, member="data.txt", read=text_table, order=range(18), features=range(16), target=16),
        "a0d37c79dab2d87574a5490bf164fc8cda3b9f605b7efd8a4d51117e806b5cb0",
    ),
    # The workbook has the same rows on five sheets, shuffled; the splits are of the one that begins so.
    "power": Source(
        f"{_UCI}/294/combined+cycle+power+plant.zip",
        partial(
            regression,
            member="Folds5x2_pp.xlsx",
            read=partial(workbook_table, columns=5, decimals=2, begins=(8.34, 40.77, 1010.84, 90.01, 480.48)),
            order=range(5),
            features=range(4),
            target=4,
        ),
        "bb2d19486c827fb13e9f976607db81a5319e80261bef88933aa72b8c1dbdc87d",
    ),
    "protein": Source(
        f"{_UCI}/265/physicochemical+properties+of+protein+tertiary+structure.zip",
        partial(
            regression,
            member="CASP.csv",
            read=partial(text_table, delimiter=",", header=1),
            order=(*range(1, 10), 0),  # the target comes first in the original
            features=range(9),
            target=9,
            splits=5,
        ),
        "5bc626611e10b09560e0d8419116876bfdd263e7bc24fffc4a646c9b55813c36",
    ),
    "wine_red": Source(
        f"{_UCI}/186/wine+quality.zip",
        partial(
            regression,
            member="winequality-red.csv",
            read=partial(text_table, delimiter=";", header=1),
            order=range(12),
            features=range(11),
            target=11,
        ),
        "01ff24e4b31cdceeef1efd4267256b944f57162db378b1b6578d18d17a919d92",
    ),
    "yacht": Source(
        f"{_UCI}/243/yacht+hydrodynamics.zip",
        partial(
            regression, member="yacht_hydrodynamics.data", read=text_table, order=range(7), features=range(6), target=6
        ),
        "60e74fdb9451a57e5405e30d0d95ff2d8583cee72166ffa3648b697a13e39858",
    ),
    "year": Source(
        f"{_UCI}/203/yearpredictionmsd.zip",
        partial(
            regression,
            member="YearPredictionMSD.txt",
            read=partial(text_table, delimiter=","),
            order=range(91),
            features=range(1, 91),
            target=0,
            splits=None,
        ),
        largest=2**29,  # 449 MB of text
    ),
    # The copy that scikit-learn's fetch_covtype downloads, with the checksum it publishes.
    "covtype": Source(
        "https://ndownloader.figshare.com/files/5976039",
        covertype,
        "ac3b58c3794084bdecd4c9d9eb85d5d5fab0a1c172c67e84e93ff8896a520ce1",
        checksum="sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
        largest=2**27,  # 75 MB of text
    ),
}


def fetch(
    names: Sequence[str], directory: Path, *, sources: Mapping[str, Source] = SOURCES, progress: bool = True
) -> list[Status]:
    """Download datasets into a data directory; what is already there and good is left alone.

    Every name is tried, whatever becomes of the others; then the errors are raised, as one.

    Args:
        names: of `sources`; none at all means all of them.
        directory: made where it does not exist.
        sources: where to download from.
        progress: whether to draw bars, on a terminal.
    """
    names = tuple(names) or tuple(sources)
    for name in names:
        check_choice("dataset", name, tuple(sources))
    prepare_directory(directory, "the data directory", "Choose another with `--data`.")
    failures: list[ValueError | OSError] = []
    for name in names:
        if _status(name, sources[name], directory).state not in ("ok", "unknown"):
            try:
                write_arrays(path_of(name, directory), _obtain(name, sources[name], directory, progress))
            except (ValueError, OSError) as error:
                failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise OSError(f"{len(failures)} of {len(names)} failed: " + " | ".join(map(str, failures)))
    return [_status(name, sources[name], directory) for name in names]


def check(directory: Path, *, sources: Mapping[str, Source] = SOURCES) -> list[Status]:
    """What a data directory holds of every dataset; nothing is downloaded or changed."""
    return [_status(name, source, directory) for name, source in sources.items()]


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An npz file through a temporary file and a rename, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # the stubs take any keyword for allow_pickle


def _status(name: str, source: Source, directory: Path) -> Status:
    path = path_of(name, directory)
    if not path.is_file():
        return Status(name, "absent")
    size = path.stat().st_size
    try:
        arrays = read_arrays(name, directory)
        rows = len(_check_digest(name, arrays, path).features)
    except (ValueError, OSError) as error:
        return Status(name, "damaged", size, detail=str(error))
    if source.digest is None:
        return Status(name, "unknown", size, rows)
    found = digest(arrays)
    if found != source.digest:
        return Status(name, "differs", size, rows, f"expected digest {source.digest}, found {found}")
    return Status(name, "ok", size, rows)


def _check_digest(name: str, arrays: Mapping[str, np.ndarray], path: Path) -> Any:
    return (as_classification if name == "covtype" else as_regression)(name, arrays, path)


def _obtain(name: str, source: Source, directory: Path, progress: bool) -> dict[str, np.ndarray]:
    """Download and parse an original; its arrays have the expected digest."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as scratch:
        original = download(name, source, Path(scratch), progress)
        try:
            arrays = source.parse(original, source.largest)
            _check_digest(name, arrays, original)
        except Exception as error:  # somebody else's file may be wrong in any way
            raise ValueError(
                f"{name}: {source.url} is not the file expected: {_one_line(error)}. Nothing was written."
            ) from error
    found = digest(arrays)
    if source.digest not in (None, found):
        raise ValueError(
            f"{name}: {source.url} holds other data: expected digest {source.digest}, found {found}. "
            "Nothing was written."
        )
    return arrays


def download(name: str, source: Source, scratch: Path, progress: bool) -> Path:
    """The path of the downloaded original in `scratch`."""
    pooch = import_optional("pooch")
    shown = progress and sys.stderr.isatty()
    pooch.get_logger().setLevel("INFO" if shown else "WARNING")
    shelf = pooch.create(
        scratch, "", registry={name: source.checksum}, urls={name: source.url}, retry_if_failed=_RETRIES
    )
    responses: list[Any] = []
    over_http = pooch.HTTPDownloader(
        progressbar=shown, chunk_size=2**16, hooks={"response": lambda response, **_: responses.append(response)}
    )

    def download(url: str, output_file: str, shelf: Any) -> None:
        try:
            with open(output_file, "wb") as file:
                over_http(url, _Bounded(file, source.largest), shelf)
        finally:  # a download that is cut short leaves its connection open
            for response in responses:
                response.close()
            responses.clear()

    try:
        return Path(shelf.fetch(name, downloader=download))
    except OSError as error:
        raise OSError(f"{name}: {source.url} cannot be downloaded: {_one_line(error)}. Try again later.") from error
    except ValueError as error:
        raise ValueError(f"{name}: {source.url} holds another file: {_one_line(error)}.") from error


class _Bounded:
    """A file to write to, and an error beyond so many bytes: a server may send without end."""

    def __init__(self, file: BinaryIO, most: int):
        self._file, self._most, self._left = file, most, most

    def write(self, piece: bytes) -> int:
        self._left -= len(piece)
        if self._left < 0:
            raise OSError(f"it has more than {self._most:,} bytes")
        return self._file.write(piece)

    def flush(self) -> None:
        self._file.flush()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
