"""The self-contained page of the toy study: table, pictures, and the flow of the particles with a slider."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from .. import plot
from .results import write_text
from .toy_figures import STEIN_METHODS
from .toy_results import Run, table, verdicts
from .toy_study import METHODS, TITLES, Setting


def write_page(
    path: Path,
    runs: Sequence[Run],
    settings: Mapping[str, Mapping[str, Setting]],
    figures: Mapping[str, Path],
    record: Mapping[str, Any],
) -> None:
    """Write the page; it needs no network and no other file.

    Args:
        path: the HTML file.
        runs: one a target.
        settings: by target and method.
        figures: PNG files by name, from `write_figures`.
        record: settings and versions, shown as they are.
    """
    seeds = len(runs[0].seeds)
    environment = record["environment"]
    page = Template(resources.files(__package__).joinpath("templates/toy.html").read_text(encoding="utf-8"))
    text = page.substitute(
        subtitle=escape(
            f"{seeds} seeds, steinkern {environment['steinkern']}, JAX {environment['jax']}, {environment['date']}"
        ),
        table=_html_table(table(runs)),
        verdicts="".join(f"<li>{escape(line)}</li>" for run in runs for line in verdicts(run)),
        overview=_picture(figures["overview"], "Particles of every method on every target"),
        curves=_picture(figures["log_mmd"], "Log MMD squared against the iteration"),
        flows="".join(_flow(run) for run in runs),
        grids="".join(
            f"<h3>{escape(run.target.title)}</h3>"
            + _picture(figures[f"grid_{run.target.name}"], f"Particles on {run.target.title} by method and iteration")
            for run in runs
        ),
        settings=_html_table(_settings_table(runs, settings)),
        record=escape(json.dumps(record, indent=1)),
    )
    write_text(path, text)


def _settings_table(runs: Sequence[Run], settings: Mapping[str, Mapping[str, Setting]]) -> str:
    names = ["target", "method", "step rule", "step size", "bandwidth", "curvature", "own share", "temperature"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for run in runs:
        for method in METHODS:
            setting = settings[run.target.name][method]
            own = (f"{setting.own_share:g}", f"{setting.temperature:g}") if method == "mixture" else ("–", "–")
            values = [run.target.title, TITLES[method], setting.rule, f"{setting.step_size:.3g}"]
            lines.append("| " + " | ".join([*values, setting.bandwidth or "–", setting.curvature or "–", *own]) + " |")
    return "\n".join(lines)


def _html_table(markdown: str) -> str:
    """A Markdown table as HTML."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    head = "".join(f"<th>{escape(cell)}</th>" for cell in lines[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines[2:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _picture(path: Path, text: str) -> str:
    return f'<img alt="{escape(text)}" src="{_data_address(path.read_bytes())}">'


def _data_address(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _flow(run: Run) -> str:
    """Four canvases and a slider; positions are thousandths of the window, which is as fine as a screen."""
    window = run.target.window
    corner = np.array([window.left, window.bottom])
    size = np.array([window.right - window.left, window.top - window.bottom])
    picture = io.BytesIO()
    plot.save_backdrop(run.target.log_density, window, picture)
    points = [
        [np.rint(1000 * (frame - corner) / size).astype(int).ravel().tolist() for frame in run.flow[method]]
        for method in STEIN_METHODS
    ]
    content = {
        "iterations": run.iterations.tolist(),
        "background": _data_address(picture.getvalue()),
        "points": points,
    }
    name = f"flow-{run.target.name}"
    height = round(480 * size[1] / size[0])
    canvases = "".join(
        f'<figure><canvas width="480" height="{height}"></canvas><figcaption>{TITLES[method]}</figcaption></figure>'
        for method in STEIN_METHODS
    )
    return (
        f"<h3>{escape(run.target.title)}</h3>"
        f'<script type="application/json" id="{name}">{json.dumps(content, separators=(",", ":"))}</script>'
        f'<div data-flow="{name}"><div class="controls"><button type="button">play</button>'
        f'<input type="range" min="0" max="{len(run.iterations) - 1}" value="0" aria-label="iteration">'
        f'<output></output></div><div class="flow">{canvases}</div></div>'
    )
