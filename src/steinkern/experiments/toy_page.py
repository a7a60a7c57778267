"""The self-contained page of the toy study: table, pictures, and the flow of the particles with a slider."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import write_text
from ..results import html, plot
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
    text = html.filled(
        __package__,
        "toy.html",
        subtitle=html.text(
            f"{seeds} seeds, steinkern {environment['steinkern']}, JAX {environment['jax']}, {environment['date']}"
        ),
        table=html.markdown_table(table(runs)),
        verdicts="".join(f"<li>{html.text(line)}</li>" for run in runs for line in verdicts(run)),
        overview=_picture(figures["overview"], "Particles of every method on every target"),
        curves=_picture(figures["log_mmd"], "Log MMD squared against the iteration"),
        flows="".join(_flow(run) for run in runs),
        grids="".join(
            f"<h3>{html.text(run.target.title)}</h3>"
            + _picture(figures[f"grid_{run.target.name}"], f"Particles on {run.target.title} by method and iteration")
            for run in runs
        ),
        settings=html.markdown_table(_settings_table(runs, settings)),
        record=html.text(json.dumps(record, indent=1)),
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


def _picture(path: Path, description: str) -> str:
    return html.picture(path.read_bytes(), description)


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
        "background": html.data_address(picture.getvalue()),
        "points": points,
    }
    name = f"flow-{run.target.name}"
    height = round(480 * size[1] / size[0])
    canvases = "".join(
        f'<figure><canvas width="480" height="{height}"></canvas><figcaption>{TITLES[method]}</figcaption></figure>'
        for method in STEIN_METHODS
    )
    return (
        f"<h3>{html.text(run.target.title)}</h3>{html.embedded(name, content)}"
        f'<div data-flow="{name}">{html.slider(len(run.iterations))}<div class="flow">{canvases}</div></div>'
    )
