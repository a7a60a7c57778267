"""The sentence study as dots: every method's error, log-likelihood and calibration on every dataset."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from steinkern.results.plot import STYLE, save

from ..methods import COLORS, TITLES
from ..study import Outcome


def write_dots(path: Path, outcome: Outcome) -> None:
    """A row of panels a metric, a panel a dataset; bars are one standard error, crosses the paper's numbers."""
    cases, lines, metrics = list(outcome.tasks), outcome.study.lines(outcome.methods), outcome.study.metrics
    labels = [line.label.replace(", ", ",\n") for line in lines]
    heights = list(range(len(lines), 0, -1))
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(1.6 * len(cases) + 1.8, 2.1 * len(metrics)), layout="constrained")
        parts: Any = figure.subfigures(len(metrics), 1)
        for part, (name, metric) in zip(parts, metrics.items(), strict=True):
            crosses = " (×: the paper)" if set(cases) & set(metric.paper) else ""
            part.supxlabel(metric.title + crosses, fontsize=8.5)
            panels = part.subplots(1, len(cases), sharey=True, squeeze=False)[0]
            for axes, case in zip(panels, cases, strict=True):
                for line, height in zip(lines, heights, strict=True):
                    row = outcome.row(case, line.method, name + line.suffix)
                    color = COLORS[TITLES[line.method]]
                    axes.errorbar(
                        row.mean, height, xerr=row.stderr, fmt="o", color=color, markersize=3.5, linewidth=1.2,
                        markerfacecolor="white" if line.suffix else color,
                    )  # fmt: skip
                    if row.paper is not None:
                        axes.plot(row.paper, height, "x", color="0.5", markersize=4)
                axes.set_yticks(heights, labels)
                axes.set_ylim(0.4, len(lines) + 0.6)
                axes.xaxis.set_major_locator(MaxNLocator(3))
                axes.grid(axis="x", color="0.92")
                axes.spines[["top", "right"]].set_visible(False)
                axes.set_axisbelow(True)
                if part is parts[0]:
                    axes.set_title(case.upper())
        save(figure, path)
