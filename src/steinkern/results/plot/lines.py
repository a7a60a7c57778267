"""Curves of a measure along a run, in panels side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .style import COLOURS, QUIET, STYLE, load, new_figure

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


class Curve(NamedTuple):
    """A measure along a run: its value at every x, and optionally a band around it."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Level(NamedTuple):
    """A reference value, drawn across the panel, and optionally a band around it."""

    middle: float
    low: float | None = None
    high: float | None = None


def curves(
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    xlabel: str,
    ylabel: str,
    levels: Mapping[str, Level] | None = None,
    level_label: str | None = None,
    marks: Mapping[str, float | int] | None = None,
    mark_label: str | None = None,
    log_x: bool = True,
    limits: Mapping[str, tuple[float, float]] | None = None,
    colours: Mapping[str, str] | None = None,
) -> "matplotlib.figure.Figure":
    """Curves of a measure against the iteration, side by side, with one legend for all panels.

    Args:
        panels: for each panel's title, its curves by their labels. A label has the same colour in every panel.
        xlabel: the label below every panel.
        ylabel: the label beside the first panel.
        levels: for some panels' titles, a reference value.
        level_label: the name of the reference value in the legend.
        marks: for some panels' titles, an x to mark by a vertical line.
        mark_label: the name of the marked x in the legend.
        log_x: a logarithmic x axis, which leaves out points at x ≤ 0.
        limits: for some panels' titles, the ends of the y axis. Panels then have separate axes, for different measures.
        colours: colours by label, to match other figures; the other labels take those of `COLOURS` in order.
    """
    if not panels:
        raise ValueError("`panels` must hold at least one panel, got none.")
    matplotlib = load()
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    given = {label: colour for label, colour in (colours or {}).items() if label in labels}
    free = [colour for colour in COLOURS if colour not in given.values()]
    if len(labels) - len(given) > len(free):
        raise ValueError(f"`panels` must have at most {len(COLOURS)} labels, to be told apart, got {len(labels)}.")
    drawn = given | dict(zip([label for label in labels if label not in given], free, strict=False))
    with matplotlib.rc_context(STYLE):
        figure = new_figure((2.5 * len(panels) + 0.3, 2.75))
        handles: dict[str, Any] = {}
        row = figure.subplots(1, len(panels), sharey=limits is None, squeeze=False)[0]
        for axes, (title, lines) in zip(row, panels.items(), strict=True):
            axes.set_title(title)
            axes.set_xlabel(xlabel)
            if log_x:
                axes.set_xscale("log")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#EBEBEB", linewidth=0.6)
            axes.set_axisbelow(True)
            for label, curve in lines.items():
                handles[label] = _draw_curve(axes, curve, drawn[label], log_x)
            axes.margins(x=0)
            if limits is not None and title in limits:
                axes.set_ylim(*limits[title])
            if marks is not None and title in marks:
                handle = axes.axvline(marks[title], color="#B5B5B5", linewidth=0.8, zorder=0)
                if mark_label is not None:
                    handles[mark_label] = handle
            if levels is not None and title in levels:
                handle = _draw_level(axes, levels[title])
                if level_label is not None:
                    handles[level_label] = handle
        row[0].set_ylabel(ylabel)
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=_legend_columns(list(handles), float(figure.get_size_inches()[0])),
            handlelength=1.4,
            columnspacing=1.2,
        )
    return figure


def _draw_curve(axes: "matplotlib.axes.Axes", curve: Curve, colour: str, positive_only: bool) -> Any:
    x = np.asarray(curve.x, np.float64)
    kept = x > 0 if positive_only else np.isfinite(x)
    if curve.low is not None and curve.high is not None:
        low, high = np.asarray(curve.low)[kept], np.asarray(curve.high)[kept]
        axes.fill_between(x[kept], low, high, color=colour, alpha=0.18, linewidth=0)
    (line,) = axes.plot(x[kept], np.asarray(curve.middle)[kept], color=colour, linewidth=1.2)
    return line


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """The number of legend columns for the fewest, evenly filled rows in `width` inches."""
    needed = sum(0.45 + 0.067 * len(label) for label in labels)
    rows = max(1, int(np.ceil(needed / width)))
    return int(np.ceil(len(labels) / rows))


def _draw_level(axes: "matplotlib.axes.Axes", level: Level) -> Any:
    if level.low is not None and level.high is not None:
        axes.axhspan(level.low, level.high, color="#9A9A9A", alpha=0.15, linewidth=0, zorder=0)
    return axes.axhline(level.middle, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
