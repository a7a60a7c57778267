"""Summaries of a result: the table of its coordinates, and a short text for a console or, as HTML, for a notebook."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from ..core.messages import quantity
from ..core.particles import Layout
from ..core.types import PyTree
from . import html

if TYPE_CHECKING:
    from .result import Result

HEAD = ("mean", "sd", "5%", "50%", "95%")
_ROWS, _WARNINGS = 4, 3  # the numbers of coordinates and warnings in a short text


def moments(particles: PyTree, max_rows: int | None) -> tuple[list[tuple[str, list[float]]], int]:
    """Name, mean, standard deviation and quantiles of the first coordinates, and the number of coordinates left out.

    The numbers are computed in double precision, whatever the precision of the particles.
    """
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), particles)
    layout = Layout.of(one)
    names = layout.coordinate_names()
    number = layout.size if max_rows is None else min(layout.size, max_rows)
    rows: list[tuple[str, list[float]]] = []
    for leaf in jax.tree.leaves(particles):
        columns = leaf.reshape(leaf.shape[0], -1)[:, : number - len(rows)]
        for column in np.asarray(columns, np.float64).T:
            quantiles = map(float, np.quantile(column, [0.05, 0.5, 0.95]))
            rows.append((next(names), [float(column.mean()), float(column.std()), *quantiles]))
    return rows, layout.size - number


def table_lines(particles: PyTree, max_rows: int | None) -> tuple[list[str], int]:
    """The lines of a text table, its head first, and the number of coordinates left out."""
    rows, left = moments(particles, max_rows)
    width = max(len("parameter"), *(len(name) for name, _ in rows))
    lines = [f"{'parameter':<{width}} " + " ".join(f"{word:>10}" for word in HEAD)]
    lines += [f"{name:<{width}} " + " ".join(f"{number:>10.4g}" for number in numbers) for name, numbers in rows]
    return lines, left


def short_text(result: "Result") -> str:
    """A summary of at most a dozen lines: the run's end, its Stein ratio, its warnings and its first coordinates."""
    lines, left = table_lines(result.particles, _ROWS)
    return "\n".join([*_facts(result), *lines, *([f"… and {left} more: print(result.summary())"] if left else [])])


def short_html(result: "Result") -> str:
    """The content of `short_text` as HTML, for a notebook."""
    rows, left = moments(result.particles, _ROWS)
    told = "".join(f"<div>{html.text(line)}</div>" for line in _facts(result))
    table = html.table(("parameter", *HEAD), [(name, *(f"{number:.4g}" for number in row)) for name, row in rows])
    more = f"<div>… and {left} more: <code>print(result.summary())</code></div>" if left else ""
    return f"{told}{table}{more}"


def _facts(result: "Result") -> list[str]:
    n, d = result.points.shape
    size = f"{quantity(n, 'particle')} in {quantity(d, 'dimension')}"
    lines = [f"Result: {result.status.value}, {size}, {quantity(result.num_steps, 'step')}"]
    if np.isfinite(result.diagnostics.stein_ratio):
        lines.append(f"Stein ratio {result.diagnostics.stein_ratio:.2g} (1 at draws)")
    lines += [f"Warning: {notice.text.split(':')[0]}" for notice in result.warnings[:_WARNINGS]]
    more = len(result.warnings) - _WARNINGS
    return [*lines, f"… and {quantity(more, 'more warning')}"] if more > 0 else lines
