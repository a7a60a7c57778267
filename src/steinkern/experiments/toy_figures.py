"""The figures of the toy study."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..results import plot
from .results import COLOURS
from .toy_results import Run
from .toy_study import METHODS, TITLES

if TYPE_CHECKING:
    import matplotlib.figure

STEIN_METHODS = ("vanilla", "svn", "average", "mixture")
"""The four methods of the paper's figures; Langevin chains are added in the appendix grids and the curves."""


def overview(runs: Sequence[Run]) -> "matplotlib.figure.Figure":
    """Figure 1 and the first appendix figure: a row a target at its reported iteration, a column a method."""
    panels = [
        plot.Panels(
            run.target.log_density,
            run.target.window,
            f"{run.target.title}\niteration {_reported(run)}",
            [run.flow["vanilla"][0], *(_particles(run, method, _reported(run)) for method in STEIN_METHODS)],
        )
        for run in runs
    ]
    return plot.target_rows(panels, ["Initial particles", *(TITLES[method] for method in STEIN_METHODS)])


def appendix_grid(run: Run) -> "matplotlib.figure.Figure":
    """The appendix grid of one target: a row a method, a column an iteration of the paper."""
    shown = [t for t in run.target.iterations if t in run.iterations]
    names = {method: TITLES[method].replace(" (", "\n(") for method in METHODS}  # rows are not high enough for one line
    rows = {names[method]: [_particles(run, method, t) for t in shown] for method in METHODS}
    return plot.particle_grid(
        run.target.log_density, run.target.window, rows, [f"Iteration {t}" for t in shown], title=run.target.title
    )


def mmd_curves(runs: Sequence[Run]) -> "matplotlib.figure.Figure":
    """Log MMD² against the iteration, all methods, with a band of one standard error over seeds."""
    panels = {}
    for run in runs:
        lines = {}
        for method in METHODS:
            values = run.log_mmd2[method]
            middle = values.mean(axis=0)
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros_like(middle)
            lines[TITLES[method]] = plot.Curve(run.iterations, middle, middle - error, middle + error)
        panels[run.target.title] = lines
    return plot.curves(
        panels,
        xlabel="Iteration",
        ylabel="log MMD²",
        levels={run.target.title: plot.Level(float(run.exact.mean())) for run in runs},
        level_label="50 exact draws",
        marks={run.target.title: _reported(run) for run in runs},
        colours=COLOURS,
    )


def write_figures(runs: Sequence[Run], directory: Path) -> dict[str, Path]:
    """All figures as PNG and SVG; the PNG files by name."""
    makers: Mapping[str, Callable[[], matplotlib.figure.Figure]] = {
        "overview": lambda: overview(runs),
        "log_mmd": lambda: mmd_curves(runs),
        **{f"grid_{run.target.name}": _grid_maker(run) for run in runs},
    }
    files = {}
    for name, make in makers.items():
        figure = make()
        files[name] = plot.save(figure, directory / f"{name}.png")
        plot.save(figure, directory / f"{name}.svg")
    return files


def _grid_maker(run: Run) -> "Callable[[], matplotlib.figure.Figure]":
    return lambda: appendix_grid(run)


def _particles(run: Run, method: str, iteration: int) -> np.ndarray:
    return run.flow[method][int(np.searchsorted(run.iterations, iteration))]


def _reported(run: Run) -> int:
    return min(run.target.reported_iteration, int(run.iterations[-1]))
