"""Small originals of every dataset in their true formats, given to pooch in place of downloads."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pooch.core
import pytest

ROWS = 20


class Originals(dict[str, bytes]):
    """The files of a test by the last part of their addresses; `asked` holds the addresses that were downloaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.asked: list[str] = []
        monkeypatch.setattr(pooch.core, "choose_downloader", lambda url, **options: self.download)

    def download(self, url: str, file: str, _: object) -> None:
        self.asked.append(url)
        Path(file).write_bytes(self[url.rpartition("/")[2]])


def numbers(columns: int) -> np.ndarray:
    return np.random.default_rng(columns).integers(-9999, 9999, (ROWS, columns)) / 100


def text(table: np.ndarray, delimiter: str, fmt: str = "%.17g", **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.savetxt(buffer, table, fmt, delimiter, comments="", **options)
    return buffer.getvalue()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {"Readme.txt": b"read me", **members}.items():
            file.writestr(name, content)
    return buffer.getvalue()


def workbook(*tables: np.ndarray) -> bytes:
    """Sheets with a line of names, and the blank rows and formatted empty cells that spreadsheets collect."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for table in tables:
        sheet = book.create_sheet()
        for row in ([f"X{i}" for i in range(table.shape[1])], *table.tolist()):
            sheet.append([*row, None, None])
        sheet.cell(row=ROWS + 30, column=table.shape[1] + 2).number_format = "0.00"
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def expected(data: np.ndarray, features: int, splits: int = 20) -> dict[str, np.ndarray]:
    """The arrays of the layout, written down a second time."""
    arrays = {"data": np.ascontiguousarray(data), "index_features": np.arange(features, dtype=np.int16)}
    arrays["index_target"] = np.array(features, np.int16)
    if splits:
        generator = np.random.RandomState(1)
        order = np.stack([generator.choice(range(ROWS), ROWS, replace=False) for _ in range(splits)]).astype(np.uint16)
        arrays |= {"train_idx": order[:, :18], "test_idx": order[:, 18:]}
    return arrays


ENERGY = numbers(10)
ENERGY[3, 8] += 0.004  # cells may hold more decimals than are published
ENERGY[4, 8] = np.nextafter(ENERGY[4, 8], np.inf)
POWER = np.vstack([(8.34, 40.77, 1010.84, 90.01, 480.48), numbers(5)[1:]])
ROBOT = "% a robot arm\n@RELATION kin8nm\n\n@ATTRIBUTE theta1 REAL\n@ATTRIBUTE y REAL\n\n@DATA"
WINE = text(numbers(12), ";", header='"fixed acidity";"volatile acidity";"alcohol";"quality"')
NAVAL = {"UCI CBM Dataset/data.txt": text(numbers(18), "", "   %.7e", newline=" \n")}
NAMES = "Cement,Blast Furnace Slag,Fly Ash,Water,Superplasticizer,Coarse,Fine,Age,Strength"
MINIATURES = {
    "boston": (text(numbers(14), " ", "%8.3f", newline="\n "), expected(numbers(14), 13)),
    "concrete": (text(numbers(9), ",", header=NAMES, newline="\r\n"), expected(numbers(9), 8)),
    "energy": (archive(**{"ENB2012_data.xlsx": workbook(ENERGY)}), expected(numbers(10)[:, :9], 8)),
    "kin8nm": (text(numbers(9), ",", header=ROBOT, footer="% the end\n"), expected(numbers(9), 8)),
    "naval": (
        archive(**NAVAL, **{"__MACOSX/UCI CBM Dataset/._data.txt": b"\0\5\x16\7"}), expected(numbers(18), 16),
    ),
    "power": (archive(**{"CCPP/Folds5x2_pp.xlsx": workbook(POWER[::-1], POWER, POWER[::-1])}), expected(POWER, 4)),
    "protein": (
        archive(**{"CASP.csv": text(numbers(10), ",", header="RMSD,F1,F2,F3,F4,F5,F6,F7,F8,F9")}),
        expected(np.roll(numbers(10), -1, axis=1), 9, splits=5),
    ),
    "wine_red": (archive(**{"winequality-white.csv": b"no", "winequality-red.csv": WINE}), expected(numbers(12), 11)),
    "yacht": (
        archive(**{"yacht_hydrodynamics.data": text(numbers(7), " ", newline=" \n") + b"\n"}), expected(numbers(7), 6),
    ),
    "year": (
        archive(**{"YearPredictionMSD.txt": text(numbers(91), ",")}),
        expected(np.roll(numbers(91), -1, axis=1), 90, splits=0),
    ),
}  # fmt: skip
"""By the dataset's name its original, and the arrays that are read from it."""
