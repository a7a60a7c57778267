"""The figures of the toy study."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..methods import TITLES
from ..plots import Panels, curves, particle_grid, save_both
from ..study import Outcome

STEIN_METHODS = ("vanilla", "svn", "average", "mixture")
"""The four methods of the paper's figures; Langevin chains are added in the appendix grids and the curves."""


def overview(outcome: Outcome) -> Figure:
    """Figure 1 and the first appendix figure: a row a target at its reported iteration, a column a method."""
    panels = []
    for case, task in outcome.tasks.items():
        shown = [("vanilla", 0), *((method, task.reported[0]) for method in STEIN_METHODS)]
        label = f"{task.target.title}\niteration {task.reported[0]}"
        clouds = [_particles(outcome, case, *cell) for cell in shown]
        panels.append(Panels(task.target.log_density, task.target.window, label, clouds))
    return particle_grid(panels, ["Initial particles", *(TITLES[method] for method in STEIN_METHODS)])


def appendix_grid(outcome: Outcome, case: str) -> Figure:
    """The appendix grid of one target: a row a method, a column an iteration of the paper."""
    task = outcome.tasks[case]
    shown = [t for t in task.target.iterations if t in task.iterations]
    panels = []
    for method in outcome.methods:
        label = TITLES[method].replace(" (", "\n(")  # rows are not high enough for a long name in one line
        clouds = [_particles(outcome, case, method, t) for t in shown]
        panels.append(Panels(task.target.log_density, task.target.window, label, clouds))
    return particle_grid(panels, [f"Iteration {t}" for t in shown], task.target.title)


def mmd_curves(outcome: Outcome) -> Figure:
    """Log MMD² against the iteration, all methods, with a band of one standard error over seeds."""
    panels, levels, marks = {}, {}, {}
    for case, task in outcome.tasks.items():
        title = task.target.title
        results = {TITLES[method]: outcome.results[case, method]["log_mmd2"] for method in outcome.methods}
        panels[title] = {name: (task.iterations, np.array(values, float)) for name, values in results.items()}
        levels[title] = outcome.row(case, "exact", "log_mmd2").mean
        marks[title] = task.reported[0]
    return curves(panels, ylabel="log MMD²", levels=levels, level_label="50 exact draws", marks=marks)


def write_figures(outcome: Outcome, directory: Path) -> dict[str, Path]:
    """All figures as PNG and SVG; the PNG files by name."""
    figures = {"overview": overview(outcome), "log_mmd": mmd_curves(outcome)}
    figures |= {f"grid_{case}": appendix_grid(outcome, case) for case in outcome.tasks}
    return {name: save_both(figure, directory / f"{name}.png") for name, figure in figures.items()}


def _particles(outcome: Outcome, case: str, method: str, iteration: int) -> np.ndarray:
    return outcome.tasks[case].at(outcome.results[case, method]["flow"], iteration)
