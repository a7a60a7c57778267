"""Summaries of a result: the table of its coordinates, and a short text for a console or, as HTML, for a notebook."""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..core.messages import quantity
from ..core.particles import coordinate_names
from ..core.types import PyTree
from . import html

if TYPE_CHECKING:
    from .result import Result

HEAD = ("mean", "sd", "5%", "50%", "95%")
_MAX_ROWS, _MAX_WARNINGS = 4, 3  # the numbers of coordinates and warnings in a short text


def by_name(particles: PyTree) -> dict[str, Any]:
    """The leaves of the particles by their paths, "x" for a bare array."""
    paths = jax.tree_util.tree_leaves_with_path(particles)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in paths}


def columns(
    sites: Mapping[str, Any], batch_axes: int = 1, limit: int | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """The names of the coordinates of all sites, at most `limit` of each, with the values along the leading axes."""
    for name, values in sites.items():
        flat = np.asarray(values.reshape(*values.shape[:batch_axes], -1)[..., :limit])  # only these leave the device
        yield from zip(coordinate_names(name, values.shape[batch_axes:]), np.moveaxis(flat, -1, 0), strict=False)


def statistics(values: np.ndarray) -> list[float]:
    """Mean, standard deviation and quantiles of the finite values; NaN where there are none.

    They are computed in double precision, whatever the precision of the values.
    """
    values = np.asarray(values, float)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return [float("nan")] * len(HEAD)
    with np.errstate(over="ignore", invalid="ignore"):  # the variance of numbers near the largest float overflows
        return [float(finite.mean()), float(finite.std()), *map(float, np.quantile(finite, [0.05, 0.5, 0.95]))]


def moments(sites: Mapping[str, Any], max_rows: int | None) -> tuple[list[tuple[str, list[float]]], int]:
    """The names and `statistics` of the first coordinates, and the number of coordinates left out."""
    rows = [(name, statistics(values)) for name, values in islice(columns(sites, limit=max_rows), max_rows)]
    return rows, sum(math.prod(values.shape[1:]) for values in sites.values()) - len(rows)


def table_lines(sites: Mapping[str, Any], max_rows: int | None) -> tuple[list[str], int]:
    """The lines of a text table, its head first, and the number of coordinates left out."""
    rows, left_out = moments(sites, max_rows)
    width = max(len("parameter"), *(len(name) for name, _ in rows))
    lines = [f"{'parameter':<{width}} " + " ".join(f"{word:>10}" for word in HEAD)]
    lines += [f"{name:<{width}} " + " ".join(f"{number:>10.4g}" for number in numbers) for name, numbers in rows]
    return lines, left_out


def size_of(result: "Result") -> str:
    """The numbers of particles and steps."""
    return f"{quantity(len(result.points), 'particle')}, {quantity(result.num_steps, 'step')}"


def short_text(result: "Result") -> str:
    """A summary of at most a dozen lines: the run's end, its Stein ratio, its warnings and its first coordinates."""
    lines, left_out = table_lines(by_name(result.particles), _MAX_ROWS)
    return "\n".join(
        [*_facts(result), *lines, *([f"… and {left_out} more: print(result.summary())"] if left_out else [])]
    )


def short_html(result: "Result") -> str:
    """The content of `short_text` as HTML, for a notebook."""
    rows, left_out = moments(by_name(result.particles), _MAX_ROWS)
    facts = "".join(f"<div>{html.text(line)}</div>" for line in _facts(result))
    table = html.table(("parameter", *HEAD), [(name, *(f"{number:.4g}" for number in row)) for name, row in rows])
    more = f"<div>… and {left_out} more: <code>print(result.summary())</code></div>" if left_out else ""
    return f"{facts}{table}{more}"


def _facts(result: "Result") -> list[str]:
    n, d = result.points.shape
    size = f"{quantity(n, 'particle')} in {quantity(d, 'dimension')}"
    lines = [f"Result: {result.status.value}, {size}, {quantity(result.num_steps, 'step')}"]
    if np.isfinite(result.diagnostics.stein_ratio):
        lines.append(f"Stein ratio {result.diagnostics.stein_ratio:.2g} (1 at draws)")
    lines += [f"Warning: {notice.text.split(':')[0]}" for notice in result.warnings[:_MAX_WARNINGS]]
    more = len(result.warnings) - _MAX_WARNINGS
    return [*lines, f"… and {quantity(more, 'more warning')}"] if more > 0 else lines
