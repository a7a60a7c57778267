"""Puts the numbers of `results/` and `benchmarks/results/` into the README and the pages, between marks (`make results`).

A table has a mark of its file and of what its rows and columns are; the rest of case, method and metric is fixed:

    <!-- table: posteriors | rows method: ours; nuts | columns metric: good_targets | case: all -->
    <!-- end of table -->

Without a list, rows and columns are all of the file. Of a fixed part with several values a cell shows all, by slashes. The
file is `benchmarks/results/posteriors.json`; a name of a study, such as `toy`, stands for the tables that the study
writes, `results/toy/table.md`. A single number is named by
file, case, method and metric:

    there are <!-- = posteriors; all; ours; good_targets -->27<!-- / -->, where a mark never begins a line.
"""

import json
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_TABLE = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)", flags=re.S)
_NUMBER = re.compile(r"(<!-- = (.*?) -->).*?(<!-- / -->)")
_AXES = ("case", "method", "metric")
LABELS = {
    "point": "point estimate", "ensemble": "deep ensemble", "vanilla": "vanilla SVGD", "last_layer": "last layer alone",
    "ours": "**`sample`**", "stein": "`fit` without a sampler",
    "ours-particles": "its 100 particles", "sample-threads": "without the limit", "nuts": "NUTS", "nuts-1000": "NUTS, 1000 + 1000", "laplace": "Laplace", "pathfinder": "Pathfinder", "svgd": "SVGD",
    "sgld": "SGLD", "psgld": "pSGLD", "svi": "Adam, mean field", "good_targets": "good", "excellent_targets": "excellent",
    "silent_failures": "wrong without a warning", "excellent_alarms": "excellent, but warned", "median_evaluations": "evaluations, median",
    "median_sequential": "one after the other, median", "max_mean_error": "largest error of a mean, sd",
    "min_sd_ratio": "smallest ratio of sds", "max_sd_ratio": "largest ratio of sds", "gigabytes": "memory",
    "relative_error": "relative error", "accuracy": "accuracy, %", "nll": "negative log-likelihood", "ece": "calibration error, %",
    "brier": "Brier score", "auroc_entropy": "AUROC of entropy", "auroc_information": "AUROC of mutual information", "relative_error_at_rest": "at rest", "milliseconds": "time",
    "first_seconds": "first call", "second_seconds": "second call", "steps_seconds": "its steps alone", "over_steps": "over its steps",
}  # fmt: skip


@cache
def numbers(name: str) -> dict[tuple[str, str, str], float]:
    """The means of a file of results by case, method and metric; NaN where a run diverged."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    if not path.exists():
        path = ROOT / "results" / name / "results.json"
    lines = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {tuple(line[axis] for axis in _AXES): float("nan" if line["mean"] is None else line["mean"]) for line in lines}


def number(value: float, metric: str) -> str:
    """A number in the units and with the digits of its metric."""
    if value != value:
        return "never" if metric == "epochs_to_reach" else "diverged"
    if metric.endswith(("seconds", "milliseconds")):
        seconds = value / 1e3 if metric == "milliseconds" else value
        return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
    if metric == "gigabytes":
        return f"{value:.2f} GB"
    if metric.startswith("relative_error"):
        return f"{value:.1e}"
    if abs(value) >= 100 or value.is_integer():
        return f"{value:,.0f}"
    digits = 1 if metric.startswith(("epochs", "error")) else 3 if metric.startswith(("accuracy@", "nll", "brier", "auroc")) else 2
    return f"{value:.{digits}f}"


def table(mark: str) -> str:
    """The table that a mark asks for."""
    name, *parts = mark.split(" | ")
    if not parts:
        made = (ROOT / "results" / name / "table.md").read_text(encoding="utf-8")
        return "\n".join(re.findall(r"(?:^\|.*\n)+", made, flags=re.M))
    found = numbers(name)
    wanted: dict[str, list[str]] = {axis: list(dict.fromkeys(key[i] for key in found)) for i, axis in enumerate(_AXES)}
    side: dict[str, str] = {}
    for part in parts:
        words, _, chosen = part.partition(": ")
        axis = words.split()[-1]
        side[words.split()[0]] = axis
        wanted[axis] = chosen.split("; ") if chosen else wanted[axis]
    rows, columns = wanted[side["rows"]], wanted[side["columns"]]
    (rest,) = set(_AXES) - {side["rows"], side["columns"]}

    def cell(row: str, column: str) -> str:
        texts = []
        for value in wanted[rest]:
            key = {side["rows"]: row, side["columns"]: column, rest: value}
            case, method, metric = (key[axis] for axis in _AXES)
            if (case, method, metric) in found:
                texts.append(number(found[case, method, metric], metric))
        return " / ".join(texts) or "–"

    lines = {row: [cell(row, column) for column in columns] for row in rows}
    heads = ["", *(LABELS.get(column, column) for column in columns)]
    text = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    text += [f"| {LABELS.get(row, row)} | {' | '.join(cells)} |" for row, cells in lines.items() if set(cells) != {"–"}]
    return "\n".join(text) + "\n"


def filled(text: str) -> str:
    """A page with its tables and numbers."""

    def with_number(match: re.Match[str]) -> str:
        name, case, method, metric = match[2].split("; ")
        value = number(numbers(name)[case, method, metric], metric)
        return match[1] + value.replace("-", "−") + match[3]

    text = _TABLE.sub(lambda match: f"{match[1]}\n{table(match[2])}\n{match[3]}", text)
    return _NUMBER.sub(with_number, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
