"""Figure 2 of the paper: two scores against the iteration, every method with a band of one standard error."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..results import plot
from .results import COLOURS


class Scored(NamedTuple):
    """One method's scores along its runs: (trials, checkpoints) for each panel, in the order of the panels."""

    checkpoints: Sequence[int]
    scores: Sequence[np.ndarray]


def write_curves(
    path: Path,
    methods: Mapping[str, Scored],
    panels: Sequence[str],
    *,
    levels: Mapping[str, float] | None = None,
    log_x: bool,
) -> None:
    """Draw one panel a score and write the figure as PNG and SVG.

    Args:
        path: the PNG file; the SVG lies beside it.
        methods: by the name that the legend shows.
        panels: the panels' titles.
        levels: by the panel's title, the best value that the paper prints.
        log_x: a logarithmic axis of iterations.
    """
    lines = {title: {name: _curve(own, number) for name, own in methods.items()} for number, title in enumerate(panels)}
    figure = plot.curves(
        lines,
        xlabel="Iteration",
        ylabel="",
        levels=None if levels is None else {title: plot.Level(value) for title, value in levels.items()},
        level_label=None if levels is None else "The paper's best",
        log_x=log_x,
        limits={title: _limits(own) for title, own in lines.items()},
        colours=COLOURS,
    )
    plot.save(figure, path)
    plot.save(figure, path.with_suffix(".svg"))


def _curve(own: Scored, number: int) -> plot.Curve:
    values = np.asarray(own.scores[number], float)
    middle = values.mean(axis=0)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros_like(middle)
    return plot.Curve(np.asarray(own.checkpoints), middle, middle - error, middle + error)


def _limits(lines: Mapping[str, plot.Curve]) -> tuple[float, float]:
    """Where the curves end is what matters: half of what a method passes through at the start is cut off."""
    middles = [curve.middle[np.isfinite(curve.middle)] for curve in lines.values()]
    ends = np.array([middle[-1] for middle in middles if middle.size])
    starts = np.concatenate([middle[len(middle) // 4 :] for middle in middles if middle.size])
    low, high = min(ends.min(), np.quantile(starts, 0.1)), max(ends.max(), np.quantile(starts, 0.9))
    margin = 0.06 * (high - low) or 0.01
    return float(low - margin), float(high + margin)
