"""The self-contained page of the toy study: pictures, the flow of the particles with a slider, tables."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ..methods import TITLES
from ..plots import save_backdrop
from ..study import Line, Outcome
from ..tables import cells_of, read_results
from .figures import STEIN_METHODS
from .runs import NUM_PARTICLES


def write_page(path: Path, outcome: Outcome, rivals: Sequence[Line], figures: Mapping[str, Path]) -> None:
    """Write the page; it needs no network and no other file.

    Args:
        path: the HTML file; results.json lies beside it.
        outcome: the finished study.
        rivals: the lines of the methods that the mixture is compared with.
        figures: PNG files by name, from `write_figures`.
    """
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__), autoescape=True, undefined=jinja2.StrictUndefined
    )
    shared = resources.files("steinkern.results.report").joinpath("templates")
    _, record, _ = read_results(path.with_name("results.json"))
    text = templates.get_template("page.html").render(
        style=shared.joinpath("page.css").read_text(encoding="utf-8"),
        player=shared.joinpath("player.js").read_text(encoding="utf-8"),
        environment=record["environment"][-1],
        seeds=len(record["seeds"]),
        titles={case: task.target.title for case, task in outcome.tasks.items()},
        pictures={name: _address(file.read_bytes()) for name, file in figures.items()},
        flows={case: _flow(outcome, case) for case in outcome.tasks},
        methods=[TITLES[method] for method in STEIN_METHODS],
        table=cells_of(outcome.tables()["log_mmd2"]),
        rivals=[line.label for line in rivals],
        verdicts=_verdicts(outcome, rivals),
        particles=NUM_PARTICLES,
        settings=outcome.settings,
        all_methods=TITLES,
        record=json.dumps(record, indent=1),
    )
    path.write_text(text, encoding="utf-8")


def is_below_exact(outcome: Outcome, case: str, iteration: int) -> bool:
    """Whether the mixture's mean is below that of exact draws."""
    rows = outcome.row(case, "mixture", f"log_mmd2@{iteration}"), outcome.row(case, "exact", "log_mmd2")
    return rows[0].mean < rows[1].mean


def _address(png: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _flow(outcome: Outcome, case: str) -> dict[str, Any]:
    """What the slider moves; positions are thousandths of the window, which is as fine as a screen."""
    task = outcome.tasks[case]
    window = task.target.window
    corner = np.array([window.left, window.bottom])
    size = np.array([window.right - window.left, window.top - window.bottom])
    picture = io.BytesIO()
    save_backdrop(task.target.log_density, window, picture)
    paths = np.array([outcome.results[case, method]["flow"] for method in STEIN_METHODS], float)
    points = np.rint(1000 * (paths - corner) / size).astype(int)
    return {
        "iterations": task.iterations.tolist(),
        "background": _address(picture.getvalue()),
        "points": points.reshape(*points.shape[:2], -1).tolist(),
        "height": round(480 * size[1] / size[0]),
    }


def _verdicts(outcome: Outcome, rivals: Sequence[Line]) -> list[dict[str, Any]]:
    """A line for every target and reported iteration: the mixture beside every rival and beside exact draws."""
    metric = outcome.study.metrics["log_mmd2"]
    compared = [outcome.compare("mixture", line, "log_mmd2", errors=2) for line in rivals]
    lines = []
    for beside in zip(*compared, strict=True):
        column = beside[0][0]
        gaps = [(metric.format_with_error(row, "+"), verdict) for _, row, verdict in beside]
        side = "below" if is_below_exact(outcome, column.case, int(column.suffix[1:])) else "above"
        lines.append({"column": column.heading, "gaps": gaps, "exact": side})
    return lines
