"""The sentence study as dots: every method's error, log-likelihood and calibration on every dataset."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..results import plot
from .paper import TABLE_2
from .results import COLOURS, TITLES
from .sentence_study import METHODS
from .sentence_table import METRICS, Rows, row_of


def write_dots(path: Path, finished: Rows) -> None:
    """A row of panels a metric, a panel a dataset; bars are one standard error, crosses the paper's numbers."""
    style: Any = plot.STYLE
    with matplotlib.rc_context(style):
        plot.save(_dots(finished), path)


def _dots(finished: Rows) -> Figure:
    names = list(dict.fromkeys(name for name, _ in finished))
    rows: list[tuple[str, str, str | None]] = [
        (TITLES[method], method, None) for method in METHODS if any(own == method for _, own in finished)
    ]
    if any(method == "point" for _, method in finished):
        rows.append((f"{TITLES['point']},\naveraged over checks", "point", "averaged"))
    heights = list(range(len(rows), 0, -1))
    figure = Figure(figsize=(1.6 * len(names) + 1.8, 2.1 * len(METRICS)), layout="constrained")
    parts: Any = figure.subfigures(len(METRICS), 1)
    for part, (metric, (title, _, _)) in zip(parts, METRICS.items(), strict=True):
        part.supxlabel(
            title + (" (×: the paper)" if metric == "error" and set(names) & set(TABLE_2) else ""), fontsize=8.5
        )
        panels = part.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            for (_, method, readout), height in zip(rows, heights, strict=True):
                row = row_of(finished, name, method, metric, readout)
                colour = COLOURS[TITLES[method]]
                face = colour if readout is None else "white"
                axes.errorbar(
                    row.mean, height, xerr=row.stderr, fmt="o", color=colour, markerfacecolor=face, markersize=3.5,
                    linewidth=1.2,
                )  # fmt: skip
                printed = TABLE_2.get(name, {}).get(method) if metric == "error" and readout is None else None
                if printed is not None:
                    axes.plot(printed, height, "x", color="0.5", markersize=4)
            axes.set_yticks(heights, [label for label, _, _ in rows])
            axes.set_ylim(0.4, len(rows) + 0.6)
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.grid(axis="x", color="0.92")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_axisbelow(True)
            if metric == "error":
                axes.set_title(name.upper())
    return figure
