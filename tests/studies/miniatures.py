"""Small originals of every dataset in their true formats, and a server on this machine to fetch them from."""

import io
import threading
import zipfile
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import openpyxl

from studies.data.datasets import SOURCES, Source, digest_of

ROWS = 20


@dataclass
class Answer:
    """What the server says to one request; `missing` bytes are announced and never sent."""

    body: bytes = b""
    status: int = 200
    missing: int = 0


class Server:
    """Answers by path; of several answers each but the last is given once."""

    def __init__(self):
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                owner.requests.append(self.path)
                known = owner.answers.get(self.path, [Answer(status=404)])
                answer = known.pop(0) if len(known) > 1 else known[0]
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body) + answer.missing))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def numbers(columns: int) -> np.ndarray:
    return np.random.default_rng(columns).integers(-9999, 9999, (ROWS, columns)) / 100


def lines(table: np.ndarray, separator: str, header: str = "", end: str = "\n") -> bytes:
    rows = [separator.join(f"{value:.17g}" for value in row) for row in table]
    return end.join([*([header] if header else []), *rows, ""]).encode()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("Readme.txt", b"read me")
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def workbook(*tables: np.ndarray) -> bytes:
    """Sheets with a line of names, and the blank rows and formatted empty cells that spreadsheets collect."""
    book = openpyxl.Workbook()
    for index, table in enumerate(tables):
        sheet = book.active if index == 0 else book.create_sheet()
        sheet.append([f"X{i}" for i in range(table.shape[1])])
        for row in table.tolist():
            sheet.append([*row, None, None])
        sheet.cell(row=ROWS + 30, column=table.shape[1] + 2).number_format = "0.00"
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def expected_regression(data: np.ndarray, features: range, target: int, splits: int | None = 20) -> dict:
    """The arrays of the layout, written down a second time."""
    arrays = {"data": data, "index_features": np.array(features, np.int16), "index_target": np.array(target, np.int16)}
    if splits is not None:
        generator = np.random.RandomState(1)
        order = np.stack([generator.choice(range(ROWS), ROWS, replace=False) for _ in range(splits)]).astype(np.uint16)
        arrays |= {"train_idx": order[:, :18], "test_idx": order[:, 18:]}
    return arrays


def boston():
    table = numbers(14)
    rows = (" ".join(f"{value:8.3f}" for value in row) for row in table)
    return "\n".join(f" {row}" for row in rows).encode(), expected_regression(table, range(13), 13)


def concrete():
    table = numbers(9)
    body = lines(
        table, ",", "Cement,Blast Furnace Slag,Fly Ash,Water,Superplasticizer,Coarse,Fine,Age,Strength", "\r\n"
    )
    return body, expected_regression(table, range(8), 8)


def energy():
    table = numbers(10)
    cells = table.copy()
    cells[3, 8] += 0.004  # cells may hold more decimals than are published
    cells[4, 8] = np.nextafter(cells[4, 8], np.inf)
    expected = expected_regression(np.ascontiguousarray(table[:, :9]), range(8), 8)
    return archive(**{"ENB2012_data.xlsx": workbook(cells)}), expected


def kin8nm():
    table = numbers(9)
    head = b"% a robot arm\n@RELATION kin8nm\n\n@ATTRIBUTE theta1 REAL\n@ATTRIBUTE y REAL\n\n@DATA\n"
    return head + lines(table, ",") + b"% the end\n\n", expected_regression(table, range(8), 8)


def naval():
    table = numbers(18)
    rows = "\n".join("".join(f"   {value:.7e}" for value in row) + " " for row in table)
    body = archive(**{"UCI CBM Dataset/data.txt": rows.encode(), "__MACOSX/UCI CBM Dataset/._data.txt": b"\0\5\x16\7"})
    return body, expected_regression(table, range(16), 16)


def power():
    table = numbers(5)
    table[0] = (8.34, 40.77, 1010.84, 90.01, 480.48)
    body = archive(**{"CCPP/Folds5x2_pp.xlsx": workbook(table[::-1], table, table[::-1])})
    return body, expected_regression(table, range(4), 4)


def protein():
    table = numbers(10)
    body = archive(**{"CASP.csv": lines(table, ",", "RMSD,F1,F2,F3,F4,F5,F6,F7,F8,F9")})
    return body, expected_regression(np.ascontiguousarray(np.roll(table, -1, axis=1)), range(9), 9, splits=5)


def wine_red():
    table = numbers(12)
    red = lines(table, ";", '"fixed acidity";"volatile acidity";"alcohol";"quality"')
    body = archive(**{"winequality-white.csv": b"no", "winequality-red.csv": red})
    return body, expected_regression(table, range(11), 11)


def yacht():
    table = numbers(7)
    body = lines(table, " ").replace(b"\n", b" \n", 3) + b"\n"
    return archive(**{"yacht_hydrodynamics.data": body}), expected_regression(table, range(6), 6)


def year():
    table = numbers(91)
    table[:, 0] = 2001
    body = archive(**{"YearPredictionMSD.txt": lines(table, ",")})
    expected = np.ascontiguousarray(np.roll(table, -1, axis=1))
    return body, expected_regression(expected, range(90), 90, splits=None)


MINIATURES = {make.__name__: make for make in (boston, concrete, energy, kin8nm, naval, power, protein, wine_red)}
MINIATURES |= {make.__name__: make for make in (yacht, year)}


def offer(server: Server, name: str) -> Source:
    """The source of this name, moved to the server and to the miniature's digest; year has none."""
    body, arrays = MINIATURES[name]()
    server.answers[f"/{name}"] = [Answer(body)]
    digest = None if name == "year" else digest_of(arrays)
    return replace(SOURCES[name], url=f"{server.address}/{name}", digest=digest)
