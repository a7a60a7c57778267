"""Figures of the image study: reliability diagrams, and entropies of images of the training classes and of others."""

from pathlib import Path
from typing import Any

import numpy as np

from ...results import plot
from ...results.plot.style import load, new_figure
from ..methods import COLOURS, TITLES
from ..study import Outcome
from .scores import ENTROPY_BINS, pooled_calibration

_SHOWN = ("point", "ensemble", "vanilla", "average", "mixture", "last_layer")
_COMPARED = ("point", "ensemble", "average", "mixture")
"""Those of a reliability diagram: its points lie close together."""
_INSIDE, _OUTSIDE = "#0072B2", "#D55E00"


def write_figures(directory: Path, outcome: Outcome) -> None:
    """`reliability_CASE.png` and `entropies_CASE.png` of every case that was run; all seeds together."""
    for case in outcome.tasks_with_data:
        methods = [method for method in _SHOWN if method in outcome.methods]
        if methods:
            results = {TITLES[method]: outcome.results[case, method] for method in methods}
            compared = [TITLES[method] for method in methods if method in _COMPARED] or list(results)
            calibrations = {name: pooled_calibration(results[name]["calibration"]) for name in compared}
            plot.save(plot.reliability(calibrations, colours=COLOURS), directory / f"reliability_{case}.png")
            plot.save(_entropies(results, outcome.tasks[case].classes), directory / f"entropies_{case}.png")


def _entropies(results: dict[str, Any], classes: int) -> Any:
    """A panel a method: how the entropy of the predictive probabilities is distributed, inside and outside."""
    matplotlib = load()
    edges = np.linspace(0, np.log(classes), ENTROPY_BINS + 1)
    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    with matplotlib.rc_context(plot.STYLE):
        figure = new_figure((2.2 * columns + 0.3, 1.7 * rows + 0.5))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for place in range(len(results), grid.size):
            grid.flat[place].set_axis_off()
            grid.flat[place - columns].tick_params(labelbottom=True)
        for axes, (name, result) in zip(grid.flat, results.items(), strict=False):
            inside, outside = np.sum(np.array(result["entropies"], float), axis=0)
            for counts, colour, label in ((inside, _INSIDE, "test images"), (outside, _OUTSIDE, "other images")):
                density = counts / counts.sum() / (edges[1] - edges[0])
                axes.stairs(density, edges, color=colour, fill=True, alpha=0.15)
                axes.stairs(density, edges, color=colour, linewidth=1.2, label=label)
            axes.set_title(name)
            axes.set_yscale("log")
            axes.spines[["top", "right"]].set_visible(False)
        figure.supxlabel("entropy of the predictive probabilities, nats", fontsize=8.5)
        figure.supylabel("density", fontsize=8.5)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
