"""The table of a run: statistics of every coordinate of every named site."""

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from ...core.particles import coordinate_names
from .. import html
from . import charts

MOST_ROWS = 400
QUANTILES = (0.05, 0.5, 0.95)
HEAD = ("mean", "sd", "5%", "50%", "95%")


def columns(sites: Mapping[str, np.ndarray], batch_axes: int = 1) -> Iterable[tuple[str, np.ndarray]]:
    """The name of every coordinate of every site, with its values along the leading axes."""
    for name, values in sites.items():
        shape = np.shape(values)
        flat = np.reshape(values, (*shape[:batch_axes], -1))
        for i, coordinate in enumerate(coordinate_names(name, shape[batch_axes:])):
            yield coordinate, flat[..., i]


def number_of_columns(values: np.ndarray, batch_axes: int = 1) -> int:
    """The number of coordinates of a site."""
    return math.prod(np.shape(values)[batch_axes:])


def statistics(values: np.ndarray) -> list[float]:
    """Mean, standard deviation and quantiles of the finite values; NaN where there are none."""
    values = np.asarray(values, float)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return [float("nan")] * len(HEAD)
    with np.errstate(over="ignore", invalid="ignore"):  # the variance of numbers near the largest float overflows
        return [float(finite.mean()), float(finite.std()), *map(float, np.quantile(finite, QUANTILES))]


def site_table(sites: Mapping[str, np.ndarray]) -> tuple[str, int, int]:
    """The table of sites as HTML, the number of coordinates, and the number of values that are not finite."""
    first = itertools.islice(columns(sites), MOST_ROWS)
    rows = [(name, *map(charts.number, statistics(values))) for name, values in first]
    lost = sum(int(np.sum(~np.isfinite(np.asarray(values, float)))) for values in sites.values())
    return html.table(("site", *HEAD), rows), sum(number_of_columns(values) for values in sites.values()), lost
