"""Results of studies: rows of means and standard errors, results.json, and Markdown tables."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """The mean of a metric over trials, its standard error, and the paper's number, if it has one."""

    case: str
    method: str
    metric: str
    mean: float
    stderr: float
    trials: int
    paper: float | None = None

    @classmethod
    def over(cls, values: Any, case: str, method: str, metric: str, paper: float | None = None) -> "Row":
        """The row of values, one for each trial. The standard error is NaN for a single trial."""
        numbers = np.asarray(values, dtype=float)
        stderr = numbers.std(ddof=1) / np.sqrt(numbers.size) if numbers.size > 1 else float("nan")
        return cls(case, method, metric, float(numbers.mean()), float(stderr), int(numbers.size), paper)


@dataclass(frozen=True)
class Metric:
    """A score: its title, whether smaller or larger is better, its digits, and the paper's numbers."""

    title: str
    sign: int = 1
    """1 where smaller is better, −1 where larger is."""
    digits: int = 3
    digits_of: Mapping[str, int] = field(default_factory=dict)
    """The digits for cases that need another number of them."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def format_mean(self, row: Row, sign: str = "") -> str:
        """The mean with this metric's digits; `sign` "+" shows the sign of positive numbers too."""
        return f"{row.mean:{sign}.{self.digits_of.get(row.case, self.digits)}f}"

    def format_with_error(self, row: Row, sign: str = "") -> str:
        """Mean ± standard error; the mean alone where there is a single trial."""
        error = f" ± {row.stderr:.{self.digits_of.get(row.case, self.digits)}f}" if np.isfinite(row.stderr) else ""
        return self.format_mean(row, sign) + error

    def best(self, rows: Iterable[Row]) -> Row:
        """The row with the best mean."""
        return min(rows, key=lambda row: self.sign * row.mean)

    def best_in_paper(self, case: str) -> float | None:
        """The paper's best number of a case, over all methods; `None` where it prints none."""
        values = self.paper.get(case, {}).values()
        return None if not values else self.sign * min(self.sign * value for value in values)

    def verdict(self, difference: Row, errors: float = 1) -> str:
        """Whether a paired difference is "better" or "worse", or "level": within so many standard errors."""
        if difference.mean == 0 or abs(difference.mean) <= errors * difference.stderr:
            return "level"
        if np.isnan(difference.stderr):
            return "one trial cannot settle it"
        return "better" if self.sign * difference.mean < 0 else "worse"


def markdown(corner: str, heads: Sequence[str], lines: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table with one line for each name."""
    top = [f"| {corner} | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join([*top, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in lines.items())])


def score_table(
    metric: Metric,
    labels: Sequence[str],
    columns: Mapping[str, Sequence[Row]],
    *,
    bold: bool = True,
    transposed: bool = False,
) -> str:
    """Means ± standard errors as Markdown, the paper's numbers in brackets.

    Args:
        metric: what the rows are of.
        labels: of the lines.
        columns: a row for every line, by the column's heading.
        bold: the best of every column; those that are level as printed are all bold.
        transposed: columns down and lines across.
    """
    cells: dict[str, list[str]] = {}
    for heading, rows in columns.items():
        best = metric.format_mean(metric.best(rows)) if bold else None
        cells[heading] = [_cell(metric, row, best) for row in rows]
    if transposed:
        return markdown(metric.title, labels, cells)
    lines = dict(zip(labels, map(list, zip(*cells.values(), strict=True)), strict=True))
    return markdown(metric.title, list(cells), lines)


def _cell(metric: Metric, row: Row, best: str | None) -> str:
    text = metric.format_with_error(row)
    text = f"**{text}**" if metric.format_mean(row) == best else text
    return text if row.paper is None else f"{text} ({row.paper:.{metric.digits}f})"


def cells_of(markdown: str) -> list[list[str]]:
    """The cells of a Markdown table, the head first."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    return [lines[0], *lines[2:]]


def aligned(markdown: str) -> str:
    """A Markdown table as aligned text for a terminal; a star marks bold cells."""
    lines = cells_of(re.sub(r"\*\*(.*?)\*\*", r"*\1", markdown))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def count_names(names: Sequence[str], of: int | None = None) -> str:
    """How many, and which: "2 (a, b)", or "2 of 3 (a, b)"."""
    number = f"{len(names)}" if of is None else f"{len(names)} of {of}"
    return f"{number} ({', '.join(names)})" if names else "none"


def rounded(values: Any, places: int | None = None) -> Any:
    """An array as nested lists for JSON, rounded to decimal places or six significant digits; null if not finite."""
    array = np.asarray(values, float)
    if array.ndim:
        return [rounded(part, places) for part in array]
    if not np.isfinite(array):
        return None
    return float(f"{array:.6g}") if places is None else round(float(array), places)


def read_json(path: Path) -> Any:
    """The content of a JSON file; `ValueError` where it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got another content: {error}. Move it away.") from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON, which appears under its name when it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def write_results(path: Path, experiment: str, settings: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Write `results.json`, {"experiment", "settings", "rows"}; NaN becomes null."""
    lines = [asdict(row) for row in rows]
    for line in lines:
        line |= {name: None for name in ("mean", "stderr") if not np.isfinite(line[name])}
    write_json(path, {"experiment": experiment, "settings": dict(settings), "rows": lines})


def read_results(path: Path) -> tuple[str, dict[str, Any], list[Row]]:
    """Read the experiment's name, settings and rows from `results.json`."""
    content = read_json(path)
    for line in content["rows"]:
        line |= {name: float("nan") for name in ("mean", "stderr") if line[name] is None}
    return content["experiment"], content["settings"], [Row(**line) for line in content["rows"]]
