"""The figures that several studies draw: particles in panels, curves along a run, reliability diagrams."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure

from steinkern.results.plot import QUIET, STYLE, Box, Particles, aspect_of, draw_density, new_figure, save

from .methods import COLORS, TITLES
from .study import Outcome


class Panels(NamedTuple):
    """A row of a grid: one density, and the particles for every column."""

    log_density: Callable[[Array], Array]
    window: Box
    label: str
    particles: Sequence[Particles]


def particle_grid(rows: Sequence[Panels], columns: Sequence[str], title: str | None = None) -> Figure:
    """A grid of `steinkern.plot.density` panels; tick labels below the last row where all have the same window.

    Args:
        rows: a density and its particles, one array for each column.
        columns: the columns' headings.
        title: above the grid.
    """
    heights = [aspect_of(row.window) for row in rows]
    same = len({tuple(row.window) for row in rows}) == 1
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        extra = (0.25 if title else 0.0) + (0.4 if same else 0.25 + 0.17 * len(rows))
        figure = new_figure((1.55 * len(columns) + 0.6, 0.95 * 1.55 * sum(heights) + extra))
        grid = figure.subplots(len(rows), len(columns), squeeze=False, height_ratios=heights)
        for i, row in enumerate(rows):
            for j, particles in enumerate(row.particles):
                draw_density(grid[i, j], row.log_density, row.window, particles)
                grid[i, j].tick_params(labelleft=j == 0, labelbottom=i == len(rows) - 1 or not same)
            grid[i, 0].set_ylabel(row.label)
        for axes, heading in zip(grid[0], columns, strict=True):
            axes.set_title(heading)
        if title:
            figure.suptitle(title, fontsize=9.5)
    return figure


def save_backdrop(log_density: Callable[[Array], Array], window: Box, file: io.BytesIO, width: int = 480) -> None:
    """Write the filled contours of a density, without axes, as a PNG of the window, to draw particles upon.

    Args:
        log_density: at one point of shape (2,), up to a constant.
        window: left, right, bottom, top.
        file: open for bytes.
        width: of the picture, in pixels; its height follows the window.
    """
    figure = new_figure((width / 100, width / 100 * aspect_of(window)))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    draw_density(axes, log_density, window)
    axes.set_axis_off()
    figure.savefig(file, dpi=100, format="png", facecolor="white", metadata={"Software": None})


def curves(
    panels: Mapping[str, Mapping[str, tuple[Any, Any]]],
    *,
    ylabel: str = "",
    levels: Mapping[str, float] | None = None,
    level_label: str = "",
    marks: Mapping[str, float] | None = None,
    log_x: bool = True,
    limits: bool = False,
) -> Figure:
    """Means over trials against the iteration with a band of one standard error, side by side, with one legend.

    Args:
        panels: for each panel's title, its curves by the methods' titles: iterations, and values (trials, iterations).
        ylabel: the label beside the first panel.
        levels: for some panels' titles, a reference value.
        level_label: the name of the reference value in the legend.
        marks: for some panels' titles, an iteration to mark by a vertical line.
        log_x: a logarithmic axis of iterations.
        limits: every panel has its own axis, which shows the ends of all curves and 80 % of the values after the first
            quarter; otherwise they share one, which shows everything.
    """
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = new_figure((2.5 * len(panels) + 0.3, 2.75))
        row = figure.subplots(1, len(panels), sharey=not limits, squeeze=False)[0]
        for axes, (title, lines) in zip(row, panels.items(), strict=True):
            axes.set(title=title, xlabel="Iteration", xscale="log" if log_x else "linear")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#EBEBEB", linewidth=0.6)
            axes.set_axisbelow(True)
            for label, (iterations, values) in lines.items():
                shown = np.asarray(iterations) > 0
                x, y = np.asarray(iterations)[shown], np.asarray(values, float)[:, shown]
                mean, error = y.mean(axis=0), y.std(axis=0, ddof=min(1, len(y) - 1)) / np.sqrt(len(y))
                axes.fill_between(x, mean - error, mean + error, color=COLORS[label], alpha=0.18, linewidth=0)
                axes.plot(x, mean, color=COLORS[label], linewidth=1.2, label=label)
            axes.margins(x=0)
            if limits:
                axes.set_ylim(*_limits([line.get_ydata() for line in axes.lines]))
            if marks:
                axes.axvline(marks[title], color="#B5B5B5", linewidth=0.8, zorder=0)
            if levels and title in levels:
                axes.axhline(
                    levels[title], color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1, label=level_label
                )
        row[0].set_ylabel(ylabel)
        entries = {
            label: handle for axes in row for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        # The fewest rows of a legend into which the names fit, evenly filled.
        rows = np.ceil(sum(0.45 + 0.067 * len(label) for label in entries) / figure.get_figwidth())
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside upper center",
            ncols=int(np.ceil(len(entries) / rows)),
            handlelength=1.4,
            columnspacing=1.2,
        )
    return figure


def _limits(means: Sequence[np.ndarray]) -> tuple[float, float]:
    finite = [mean[np.isfinite(mean)] for mean in means if np.isfinite(mean).any()]
    ends = [mean[-1] for mean in finite]
    later = np.concatenate([mean[len(mean) // 4 :] for mean in finite])
    low, high = min(*ends, np.quantile(later, 0.1)), max(*ends, np.quantile(later, 0.9))
    margin = 0.06 * (high - low) or 0.01
    return low - margin, high + margin


def write_curves(path: Path, outcome: Outcome, case: str, *, log_x: bool) -> None:
    """Figure 2 of the paper: one panel a metric, with the paper's best number, as PNG and SVG.

    Args:
        path: the PNG file; the SVG lies beside it.
        outcome: a study whose results hold "checkpoints" and for every metric values (trials, checkpoints).
        case: which one to draw.
        log_x: a logarithmic axis of iterations.
    """
    metrics = outcome.study.metrics
    results = {TITLES[method]: outcome.results[case, method] for method in outcome.methods}
    panels = {
        metric.title: {title: (result["checkpoints"], result[name]) for title, result in results.items()}
        for name, metric in metrics.items()
    }
    best = {metric.title: metric.best_in_paper(case) for metric in metrics.values()}
    levels = {title: value for title, value in best.items() if value is not None}
    figure = curves(panels, levels=levels, level_label="The paper's best", log_x=log_x, limits=True)
    save_both(figure, path)


def save_both(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG and, beside it, as SVG; the path of the PNG."""
    save(figure, path.with_suffix(".svg"))
    return save(figure, path)


def reliability(counts: Mapping[str, Any]) -> Figure:
    """A reliability diagram: the accuracy of predicted classes against their mean probability, in bins.

    Calibrated predictions lie on the diagonal; points below it are overconfident. The area of a point grows with the
    number of predictions in its bin, and its bar is the 68 percent interval of their accuracy (Wilson's).

    Args:
        counts: by a method's title, for every bin the number of predictions, and the sums of their confidence and of
            the right ones.
    """
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = new_figure((3.2, 3.2 + 0.17 * len(counts)))
        axes: Any = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        for label, bins in counts.items():
            number, confidence, right = np.asarray(bins)[:, np.asarray(bins)[0] > 0]
            error = np.sum(np.abs(confidence - right)) / np.sum(number)
            share = right / number
            center = (share + 0.5 / number) / (1 + 1 / number)
            half = np.sqrt(share * (1 - share) / number + 0.25 / number**2) / (1 + 1 / number)
            look = {"color": COLORS[label], "label": f"{label}: calibration error {error:.3f}", "clip_on": False}
            axes.vlines(confidence / number, center - half, center + half, color=COLORS[label], linewidth=0.9, zorder=2)
            sizes = 6 + 60 * number / number.max()
            axes.scatter(confidence / number, share, sizes, edgecolors="white", linewidths=0.5, zorder=3, **look)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="probability of the predicted class")
        axes.set_ylabel("share of right predictions")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", fontsize=7)
    return figure
