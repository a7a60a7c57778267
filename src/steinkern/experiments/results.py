"""The one format of results: every experiment and benchmark writes the same rows."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import write_text
from ..results.plot import COLOURS as COLOUR_ORDER

TITLES = {
    "sgld": "SGLD",
    "psgld": "pSGLD",
    "vanilla": "Vanilla SVGD",
    "svn": "SVN",
    "average": "Matrix-SVGD (average)",
    "mixture": "Matrix-SVGD (mixture)",
    "ensemble": "Deep ensemble",
    "point": "Point estimate",
}
"""The methods' names in tables and legends."""
COLOURS = {
    TITLES[method]: COLOUR_ORDER[place]
    for place, method in enumerate(("vanilla", "svn", "average", "mixture", "sgld", "psgld", "ensemble"))
} | {TITLES["point"]: COLOUR_ORDER[-1]}
"""A colour for every method, the same in all figures; no figure has both ensembles and point estimates."""


@dataclass(frozen=True)
class Row:
    """One number: the mean of a metric over trials, its standard error, and what the paper prints, where it does."""

    case: str
    method: str
    metric: str
    mean: float
    stderr: float
    trials: int
    paper: float | None = None

    @classmethod
    def over(cls, values: Any, case: str, method: str, metric: str, paper: float | None = None) -> "Row":
        """The row of one value a trial. The standard error is NaN for a single trial."""
        numbers = np.asarray(values, dtype=float)
        stderr = numbers.std(ddof=1) / np.sqrt(numbers.size) if numbers.size > 1 else float("nan")
        return cls(case, method, metric, float(numbers.mean()), float(stderr), int(numbers.size), paper)


def write_results(path: Path, experiment: str, settings: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """`results.json`: {"experiment", "settings", "rows"}; NaN, which JSON has not, becomes null."""
    lines = [{key: _plain(value) for key, value in asdict(row).items()} for row in rows]
    write_json(path, {"experiment": experiment, "settings": dict(settings), "rows": lines})


def read_results(path: Path) -> tuple[str, dict[str, Any], list[Row]]:
    """What `write_results` wrote: the experiment's name, its settings, its rows."""
    content = json.loads(path.read_text())
    rows = [Row(**{key: _number(key, value) for key, value in line.items()}) for line in content["rows"]]
    return content["experiment"], content["settings"], rows


def aligned(markdown: str) -> str:
    """A Markdown table as columns of text, for a terminal; what is bold has a star before it."""
    plain = re.sub(r"\*\*(.*?)\*\*", r"*\1", markdown)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in plain.splitlines()]
    del lines[1]  # the rule below the head
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def rounded(values: Any) -> Any:
    """An array as nested lists for JSON, to six significant digits; what is not finite is null."""
    array = np.asarray(values, float)
    if array.ndim:
        return [rounded(part) for part in array]
    return float(f"{array:.6g}") if np.isfinite(array) else None


def write_json(path: Path, content: Any) -> None:
    """JSON through a temporary file and a rename, so that a reader never sees half of it."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """An unknown name, a repeated one, or none at all, is an error now and not after long work."""
    if not names:
        raise ValueError(f"`{option}` must name at least one of {', '.join(known)}, got none.")
    if len(set(names)) < len(names):
        raise ValueError(f"`{option}` must name each once, got {', '.join(names)}.")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"`{option}` must be among {', '.join(known)}, got {', '.join(unknown)}.")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _number(key: str, value: Any) -> Any:
    return float("nan") if value is None and key in ("mean", "stderr") else value
