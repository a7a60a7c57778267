"""Figure 2 of the paper: scores against the iteration, every method with a band of one standard error."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..results import plot
from .methods import COLOURS, TITLES
from .study import Outcome


def write_curves(path: Path, outcome: Outcome, case: str, *, log_x: bool) -> None:
    """Draw one panel a metric, with the paper's best number, and write the figure as PNG and SVG.

    Args:
        path: the PNG file; the SVG lies beside it.
        outcome: a study whose results hold "checkpoints" and for every metric values (trials, checkpoints).
        case: which one to draw.
        log_x: a logarithmic axis of iterations.
    """
    panels, levels = {}, {}
    for name, metric in outcome.study.metrics.items():
        results = {TITLES[method]: outcome.results[case, method] for method in outcome.methods}
        panels[metric.title] = {
            title: curve(result["checkpoints"], np.array(result[name], float)) for title, result in results.items()
        }
        best = metric.best_in_paper(case)
        if best is not None:
            levels[metric.title] = plot.Level(best)
    figure = plot.curves(
        panels,
        xlabel="Iteration",
        ylabel="",
        levels=levels or None,
        level_label="The paper's best" if levels else None,
        log_x=log_x,
        limits={title: _limits(lines) for title, lines in panels.items()},
        colours=COLOURS,
    )
    plot.save(figure, path)
    plot.save(figure, path.with_suffix(".svg"))


def curve(checkpoints: object, values: np.ndarray) -> plot.Curve:
    """The mean over trials of values (trials, checkpoints), with a band of one standard error."""
    middle = values.mean(axis=0)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros_like(middle)
    return plot.Curve(np.asarray(checkpoints), middle, middle - error, middle + error)


def _limits(lines: Mapping[str, plot.Curve]) -> tuple[float, float]:
    """The limits of the y axis: they hold the ends of all curves and 80% of the values after the first quarter."""
    middles = [curve.middle[np.isfinite(curve.middle)] for curve in lines.values()]
    ends = np.array([middle[-1] for middle in middles if middle.size])
    starts = np.concatenate([middle[len(middle) // 4 :] for middle in middles if middle.size])
    low, high = min(ends.min(), np.quantile(starts, 0.1)), max(ends.max(), np.quantile(starts, 0.9))
    margin = 0.06 * (high - low) or 0.01
    return float(low - margin), float(high + margin)
