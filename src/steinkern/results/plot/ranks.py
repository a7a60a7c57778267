"""Ranks of simulation-based calibration: their distribution function minus the uniform one, within its band."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...core.types import check_count
from ..uniformity import uniformity_test
from .style import INK, QUIET, STYLE, load, new_figure

if TYPE_CHECKING:
    import matplotlib.figure

_OUTSIDE, _INSIDE, _BAND = "#D55E00", "#0072B2", "#C8D8E9"
_COLUMNS = 4


def rank_ecdf(
    ranks: Mapping[str, np.ndarray], num_ranks: int, *, level: float = 0.95, title: str | None = None
) -> "matplotlib.figure.Figure":
    """The empirical distribution function of ranks minus the uniform one, a panel for each parameter.

    Uniform ranks stay inside the shaded band, everywhere and in all panels at once, with probability `level`. A curve
    outside of it is drawn in orange. A curve above 0 means draws that are too large, below 0 too small; above 0 on the
    left and below on the right, draws that are too close together; the reverse, too far apart.

    Args:
        ranks: for each parameter's name, its ranks in 0, …, `num_ranks` − 1.
        num_ranks: the number of possible ranks, one more than there are draws to compare with.
        level: the probability of the band.
        title: above the panels.
    """
    check_count("num_ranks", num_ranks, least=2)
    if not ranks:
        raise ValueError("`ranks` must hold at least one parameter, got none.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1, got {level!r}.")
    matplotlib = load()
    columns = min(_COLUMNS, len(ranks))
    rows = -(-len(ranks) // columns)
    test = uniformity_test(len(next(iter(ranks.values()))), num_ranks)
    lower, upper = test.band(1 - (1 - level) / len(ranks))
    z = np.concatenate([[0.0], test.levels, [1.0]])

    def difference(counts: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], counts / test.num_samples - test.levels, [0.0]])

    with matplotlib.rc_context(STYLE):
        figure = new_figure((1.9 * columns + 0.4, 1.6 * rows + (0.5 if title else 0.3)))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(ranks) :]:
            axes.set_axis_off()
        for axes, (name, values) in zip(grid.flat, ranks.items(), strict=False):
            counts = test.counts(np.asarray(values))
            outside = bool(np.any((counts < lower) | (counts > upper)))
            axes.fill_between(z, difference(lower), difference(upper), color=_BAND, linewidth=0)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.plot(z, difference(counts), color=_OUTSIDE if outside else _INSIDE, linewidth=1.2)
            axes.set_title(name, color=_OUTSIDE if outside else INK)
            axes.margins(x=0)
            axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            axes.spines[["top", "right"]].set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("rank / number of ranks")
        for axes in grid[:, 0]:
            axes.set_ylabel("ECDF − uniform")
        if title:
            figure.suptitle(title, fontsize=8.5)
    return figure
