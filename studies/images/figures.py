"""Figures of the image study: reliability diagrams, and entropies of images of the training classes and of others."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from steinkern.results.plot import STYLE, new_figure, save

from ..methods import TITLES
from ..plots import reliability
from ..study import Outcome
from .scores import ENTROPY_BINS

_SHOWN = ("point", "ensemble", "vanilla", "average", "mixture", "last_layer")
_COMPARED = ("point", "ensemble", "average", "mixture")
"""Those of a reliability diagram: its points lie close together."""


def write_figures(directory: Path, outcome: Outcome) -> None:
    """`reliability_CASE.png` and `entropies_CASE.png` of every case that was run; all seeds together."""
    for case in outcome.tasks:
        results = {method: outcome.results[case, method] for method in _SHOWN if method in outcome.methods}
        if results:
            compared = [method for method in results if method in _COMPARED] or list(results)
            counts = {TITLES[method]: np.sum(results[method]["calibration"], axis=0) for method in compared}
            save(reliability(counts), directory / f"reliability_{case}.png")
            save(_entropies(results, outcome.tasks[case].classes), directory / f"entropies_{case}.png")


def _entropies(results: dict[str, Any], classes: int) -> Figure:
    """A panel a method: how the entropy of the predictive probabilities is distributed, inside and outside."""
    edges = np.linspace(0, np.log(classes), ENTROPY_BINS + 1)
    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = new_figure((2.2 * columns + 0.3, 1.7 * rows + 0.5))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for index in range(len(results), grid.size):
            grid.flat[index].set_axis_off()
            grid.flat[index - columns].tick_params(labelbottom=True)
        for axes, (method, result) in zip(grid.flat, results.items(), strict=False):
            inside, outside = np.sum(np.array(result["entropies"], float), axis=0)
            for counts, color, label in ((inside, "#0072B2", "test images"), (outside, "#D55E00", "other images")):
                density = counts / counts.sum() / (edges[1] - edges[0])
                axes.stairs(density, edges, color=color, fill=True, alpha=0.15)
                axes.stairs(density, edges, color=color, linewidth=1.2, label=label)
            axes.set_title(TITLES[method])
            axes.set_yscale("log")
            axes.spines[["top", "right"]].set_visible(False)
        figure.supxlabel("entropy of the predictive probabilities, nats", fontsize=8.5)
        figure.supylabel("density", fontsize=8.5)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
