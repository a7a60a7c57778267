"""Predictive checks: histograms of test statistics of replicated data, with the observed value."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from .style import INK, STYLE, load, new_figure

if TYPE_CHECKING:
    import matplotlib.figure

_BARS, _LINE, _MARKED = "#A3BEDA", "#262626", "#D55E00"
_COLUMNS = 4


def statistic_histograms(
    observed: Mapping[str, float],
    replicated: Mapping[str, np.ndarray],
    p_values: Mapping[str, float],
    *,
    marked: Collection[str] = (),
) -> "matplotlib.figure.Figure":
    """A panel for each statistic: its histogram over replicated data sets, and a line at the observed value.

    Args:
        observed: each statistic at the observed data, by name.
        replicated: each statistic at the replicated data sets.
        p_values: written into the panels.
        marked: the statistics to draw in orange.
    """
    if not observed:
        raise ValueError("`observed` must hold at least one statistic, got none.")
    matplotlib = load()
    columns = min(_COLUMNS, len(observed))
    rows = -(-len(observed) // columns)
    with matplotlib.rc_context(STYLE):
        figure = new_figure((1.9 * columns + 0.3, 1.6 * rows + 0.2))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(observed) :]:
            axes.set_axis_off()
        for axes, (name, value) in zip(grid.flat, observed.items(), strict=False):
            colour = _MARKED if name in marked else _LINE
            finite = replicated[name][np.isfinite(replicated[name])]
            if len(finite):
                axes.hist(finite, bins=_bins(finite), color=_BARS)
            axes.axvline(value, color=colour, linewidth=1.4)
            axes.set_title(f"{name}, p = {p_values[name]:.2f}", color=_MARKED if name in marked else INK)
            axes.set_yticks([])
            axes.locator_params(axis="x", nbins=4)
            axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _bins(values: np.ndarray) -> np.ndarray:
    """Edges of about √n bins; for few different values a bin around each."""
    different = np.unique(values)
    if len(different) == 1:
        return different[0] + np.array([-0.5, 0.5])
    if len(different) <= 12:
        middle = (different[1:] + different[:-1]) / 2
        return np.concatenate([[2 * different[0] - middle[0]], middle, [2 * different[-1] - middle[-1]]])
    return np.linspace(values.min(), values.max(), int(np.clip(np.sqrt(len(values)), 8, 40)) + 1)
