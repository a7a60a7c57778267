"""Tables of a run: statistics of every coordinate of every named site, and predictive checks."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...core.particles import coordinate_names
from .. import html
from . import charts

MOST_ROWS = 400
QUANTILES = (0.05, 0.5, 0.95)
HEAD = ("mean", "sd", "5%", "50%", "95%")
_MOST_BINS = 20
_LEVEL = 0.9


def columns(sites: Mapping[str, np.ndarray], batch_axes: int = 1) -> Iterable[tuple[str, np.ndarray]]:
    """The name of every coordinate of every site, with its values along the leading axes."""
    for name, values in sites.items():
        shape = np.shape(values)
        flat = np.reshape(values, (*shape[:batch_axes], -1))
        for place, coordinate in enumerate(coordinate_names(name, shape[batch_axes:])):
            yield coordinate, flat[..., place]


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


def check(name: str, draws: Any, observed: Any) -> str:
    """One predictive check as HTML: statistics of the observations and of the draws, and a histogram."""
    draws = np.asarray(draws, float).reshape(len(draws), -1)
    if observed is None or not np.size(observed):
        middle, low, high = map(charts.number, (float(draws.mean()), *map(float, _interval(draws.ravel()))))
        return (
            f"<h3>{html.text(name)}</h3><p>Predictive mean {middle}, 90% of all draws between {low} and {high}. To"
            " compare them with observations, give <code>observed={name: values}</code>.</p>"
        )
    seen = np.asarray(observed, float).ravel()
    rows = []
    for label, function in (("mean", np.mean), ("sd", np.std), ("smallest", np.min), ("largest", np.max)):
        replicated = function(draws, axis=1)
        low, high = _interval(replicated)
        above = float(np.mean(replicated >= function(seen)))
        rows.append(
            (
                label,
                *map(charts.number, (float(function(seen)), float(replicated.mean()), float(low), float(high))),
                f"{above:.2f}",
            )
        )
    head = ("statistic", "observed", "predicted", "5%", "95%", "P(predicted ≥ observed)")
    inside = _inside(draws, seen)
    return (
        f"<h3>{html.text(name)}</h3><p>{inside:.0%} of {seen.size} observations lie in their own central 90% interval. "
        "A probability near 0 or 1 names what the model does not reproduce.</p>"
        f'<div class="wide">{html.table(head, rows)}</div>{_counts(name, draws, seen)}'
    )


def _interval(values: np.ndarray) -> np.ndarray:
    """The ends of the central 90% interval along the first axis."""
    return np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)


def _inside(draws: np.ndarray, seen: np.ndarray) -> float:
    low, high = _interval(draws)
    return float(np.mean((low <= seen) & (seen <= high)))


def _counts(name: str, draws: np.ndarray, seen: np.ndarray) -> str:
    finite = draws[np.isfinite(draws)]
    if not (finite.size and seen.size and np.isfinite(seen).all()):
        return ""
    both = np.concatenate([seen, np.quantile(finite, [0.005, 0.995])])
    values = np.unique(seen)
    if np.all(values == np.round(values)) and np.ptp(both) <= _MOST_BINS:  # counts or labels: one bin for each
        edges = np.arange(both.min().round() - 0.5, both.max().round() + 1.0)
    else:
        bins = int(np.clip(2 * np.sqrt(seen.size), 5, _MOST_BINS))
        edges = np.linspace(both.min(), both.max(), bins + 1)
    if not np.all(np.diff(edges) > 0):  # a single value, or a range that floating point cannot divide
        return ""
    replicated = np.stack([np.histogram(draw, edges)[0] for draw in draws])
    low, high = _interval(replicated)
    chart = charts.histogram(name, edges, low, high, np.histogram(seen, edges)[0])
    return f"<figure>{chart}<figcaption>Counts: observed (line), 90% band of the predicted.</figcaption></figure>"
