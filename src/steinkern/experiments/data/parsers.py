"""Parsers of the published files of the datasets.

Every reader takes an open file of bytes and gives a matrix; `regression` and `covertype` make a file's arrays of it.
What unpacks is counted: a source says how much may come out of its original.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from .datasets import import_optional, standard_splits
from .unpack import open_gzip, open_member, open_plain, unpacked_archive

_LARGEST_WORKBOOK = 2**26  # bytes, unpacked
_MOST_ROWS = 2**20  # of a sheet, by the format
Table = Float64[np.ndarray, "rows columns"]

_COVERTYPE_COLUMNS = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)),
    "Cover_Type",
)


def regression(
    path: Path,
    most: int,
    *,
    read: Callable[[Any], Table],
    order: Sequence[int],
    target: int,
    features: Sequence[int],
    splits: int | None = 20,
    member: str | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of a regression.

    Args:
        path: the downloaded original.
        most: bytes that may come out of it.
        read: the reader of its format.
        order: which columns of the original to keep, in which order; all counts below are after that.
        target: the column to predict.
        features: the columns to predict it from.
        splits: how many standard splits to draw, or None for none.
        member: the name of the file inside the original, where that is a zip archive.
    """
    with open_plain(path, most) if member is None else open_member(path, member, most) as stream:
        table = read(stream)
    if table.ndim != 2 or table.shape[1] <= max(order):
        raise ValueError(f"its table has shape {table.shape}; expected at least {max(order) + 1} columns")
    arrays = {
        "data": np.ascontiguousarray(table[:, list(order)]),
        "index_features": np.array(features, dtype=np.int16),
        "index_target": np.array(target, dtype=np.int16),
    }
    if splits is not None:
        kind = np.uint16 if len(table) <= 2**16 else np.uint32
        train_rows, test_rows = standard_splits(len(table), splits)
        arrays |= {"train_idx": train_rows.astype(kind), "test_idx": test_rows.astype(kind)}
    return arrays


def covertype(path: Path, most: int) -> dict[str, np.ndarray]:
    """Covertype from its gzipped text: 54 features and the label, all whole numbers, separated by commas."""
    with open_gzip(path, most) as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.int16, ndmin=2)
    if table.shape[1] != len(_COVERTYPE_COLUMNS):
        raise ValueError(f"its table has {table.shape[1]} columns; expected {len(_COVERTYPE_COLUMNS)}")
    return {
        "X": np.asfortranarray(table[:, :-1]),  # columns together: the file is half as large
        "label": table[:, -1].astype(np.uint8),
        "columns": np.array(_COVERTYPE_COLUMNS),
    }


def text_table(stream: Any, *, delimiter: str | None = None, header: int = 0) -> Table:
    """A text table of numbers, separated by `delimiter` or by blanks, after `header` lines to skip."""
    return np.loadtxt(stream, delimiter=delimiter, skiprows=header, ndmin=2, encoding="utf-8")


def arff_table(stream: Any) -> Table:
    """The rows of an ARFF file: the lines after `@data`, without comments, which begin with %."""
    with io.TextIOWrapper(stream, encoding="utf-8") as lines:
        if not any(line.strip().lower() == "@data" for line in lines):  # reads up to and including that line
            raise ValueError("it has no line `@data`")
        return np.loadtxt(lines, delimiter=",", comments="%", ndmin=2)


def workbook_table(stream: Any, *, columns: int, decimals: int, begins: Sequence[float] | None = None) -> Table:
    """The first `columns` columns of a sheet of an xlsx workbook, without its header and blank rows.

    Args:
        stream: the open workbook.
        columns: how many columns to take.
        decimals: the decimals the published numbers have. Cells hold more, from the arithmetic that filled them.
        begins: the first row of the sheet to take; by default the first sheet is taken.
    """
    plain = unpacked_archive(stream, _LARGEST_WORKBOOK)
    book = import_optional("openpyxl").load_workbook(plain, read_only=True, data_only=True)
    try:
        for sheet in book.worksheets:
            rows = sheet.iter_rows(min_row=2, max_row=_MOST_ROWS, max_col=columns, values_only=True)
            filled = (row for row in rows if any(cell is not None for cell in row))
            first = next(filled, None)
            if first is not None and (begins is None or np.allclose(np.array(first, dtype=float), begins)):
                return np.round(np.array([first, *filled], dtype=np.float64), decimals)
    finally:
        book.close()
    raise ValueError("no sheet of it holds rows" if begins is None else f"no sheet of it begins with {tuple(begins)}")
