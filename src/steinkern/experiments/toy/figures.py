"""The figures of the toy study."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...results import plot
from ..curves import curve
from ..methods import COLOURS, TITLES
from ..study import Outcome

if TYPE_CHECKING:
    import matplotlib.figure

STEIN_METHODS = ("vanilla", "svn", "average", "mixture")
"""The four methods of the paper's figures; Langevin chains are added in the appendix grids and the curves."""


def overview(outcome: Outcome) -> "matplotlib.figure.Figure":
    """Figure 1 and the first appendix figure: a row a target at its reported iteration, a column a method."""
    panels = []
    for case, task in outcome.tasks.items():
        shown = task.reported[0]
        panels.append(
            plot.Panels(
                task.target.log_density,
                task.target.window,
                f"{task.target.title}\niteration {shown}",
                [_particles(outcome, case, "vanilla", 0)]
                + [_particles(outcome, case, method, shown) for method in STEIN_METHODS],
            )
        )
    return plot.target_rows(panels, ["Initial particles", *(TITLES[method] for method in STEIN_METHODS)])


def appendix_grid(outcome: Outcome, case: str) -> "matplotlib.figure.Figure":
    """The appendix grid of one target: a row a method, a column an iteration of the paper."""
    task = outcome.tasks[case]
    shown = [t for t in task.target.iterations if t in task.iterations]
    rows = {
        TITLES[method].replace(" (", "\n("): [_particles(outcome, case, method, t) for t in shown]
        for method in outcome.methods
    }  # rows are not high enough for a long name in one line
    heads = [f"Iteration {t}" for t in shown]
    return plot.particle_grid(task.target.log_density, task.target.window, rows, heads, title=task.target.title)


def mmd_curves(outcome: Outcome) -> "matplotlib.figure.Figure":
    """Log MMD² against the iteration, all methods, with a band of one standard error over seeds."""
    panels, levels, marks = {}, {}, {}
    for case, task in outcome.tasks.items():
        title = task.target.title
        results = {TITLES[method]: outcome.results[case, method]["log_mmd2"] for method in outcome.methods}
        panels[title] = {name: curve(task.iterations, np.array(values, float)) for name, values in results.items()}
        levels[title] = plot.Level(outcome.row(case, "exact", "log_mmd2").mean)
        marks[title] = task.reported[0]
    return plot.curves(
        panels,
        xlabel="Iteration",
        ylabel="log MMD²",
        levels=levels,
        level_label="50 exact draws",
        marks=marks,
        colours=COLOURS,
    )


def write_figures(outcome: Outcome, directory: Path) -> dict[str, Path]:
    """All figures as PNG and SVG; the PNG files by name."""
    figures = {"overview": overview(outcome), "log_mmd": mmd_curves(outcome)}
    figures |= {f"grid_{case}": appendix_grid(outcome, case) for case in outcome.tasks}
    files = {}
    for name, figure in figures.items():
        files[name] = plot.save(figure, directory / f"{name}.png")
        plot.save(figure, directory / f"{name}.svg")
    return files


def _particles(outcome: Outcome, case: str, method: str, iteration: int) -> np.ndarray:
    return outcome.tasks[case].at(outcome.results[case, method]["flow"], iteration)
