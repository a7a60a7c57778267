"""Two-dimensional densities with particles on top, in single panels and in grids."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.types import check_count
from .style import INK, QUIET, STYLE, load, new_figure

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

_PARTICLE = "#D55E00"
_SHADES = ("#E4ECF5", "#C8D8E9", "#A3BEDA", "#7BA1C7")  # light to dark, all lighter than the particles
_MASSES = (0.99, 0.9, 0.7, 0.4)

Box = tuple[float, float, float, float]
Particles = Float[Array, "n 2"] | Float[np.ndarray, "n 2"]


class Panels(NamedTuple):
    """A row of a grid: one density, and the particles for every column."""

    log_density: Callable[[Array], Array]
    window: Box
    label: str
    particles: Sequence[Particles]


def density(
    log_density: Callable[[Array], Array],
    window: Box,
    particles: Particles | None = None,
    title: str | None = None,
    resolution: int = 300,
) -> "matplotlib.figure.Figure":
    """Filled contours of a two-dimensional density, with particles on top.

    The shades are the smallest regions that hold 40, 70, 90 and 99 percent of the mass in the window.

    Args:
        log_density: at one point of shape (2,), up to a constant.
        window: left, right, bottom, top.
        particles: points to draw; a note counts those outside the window.
        title: above the panel.
        resolution: of the grid on which the density is evaluated, along each axis.
    """
    matplotlib = load()
    with matplotlib.rc_context(STYLE):
        width = 3.2
        figure = new_figure((width, width * _aspect(window) + (0.3 if title else 0.0)))
        axes = figure.add_subplot()
        _draw_panel(axes, _shades(log_density, window, resolution), particles)
        if title:
            axes.set_title(title)
    return figure


def particle_grid(
    log_density: Callable[[Array], Array],
    window: Box,
    rows: Mapping[str, Sequence[Particles]],
    columns: Sequence[str],
    *,
    title: str | None = None,
    notes: Mapping[str, Sequence[str]] | None = None,
    resolution: int = 300,
) -> "matplotlib.figure.Figure":
    """A grid of `density` panels with common limits: one row for each method, one column for each iteration.

    Args:
        log_density: at one point of shape (2,), up to a constant.
        window: left, right, bottom, top.
        rows: the particles of every method, one array for each column.
        columns: the columns' headings.
        title: above the grid.
        notes: a short text for the corner of every panel, in the same structure as `rows`.
        resolution: of the grid on which the density is evaluated, along each axis.
    """
    panels = [Panels(log_density, window, label, history) for label, history in rows.items()]
    if notes is None:
        return _grid(panels, columns, None, title, resolution)
    if list(notes) != list(rows):
        raise ValueError(f"`notes` must have the keys of `rows`, {list(rows)}, got {list(notes)}.")
    return _grid(panels, columns, list(notes.values()), title, resolution)


def target_rows(
    rows: Sequence[Panels], columns: Sequence[str], *, title: str | None = None, resolution: int = 300
) -> "matplotlib.figure.Figure":
    """A grid of `density` panels: one row for each target, with its own limits, and one column for each method.

    Args:
        rows: a density and its particles, one array for each column.
        columns: the columns' headings.
        title: above the grid.
        resolution: of the grid on which the densities are evaluated, along each axis.
    """
    return _grid(rows, columns, None, title, resolution)


def save_backdrop(
    log_density: Callable[[Array], Array],
    window: Box,
    file: str | Path | io.BufferedIOBase,
    resolution: int = 300,
    width: int = 480,
) -> None:
    """Write the filled contours of a density, without axes, as a PNG of the window, to draw particles upon.

    Args:
        log_density: at one point of shape (2,), up to a constant.
        window: left, right, bottom, top.
        file: a path, or a file open for bytes.
        resolution: of the grid on which the density is evaluated, along each axis.
        width: of the picture, in pixels; its height follows the window.
    """
    check_count("width", width, least=10)
    matplotlib = load()
    with matplotlib.rc_context(STYLE):
        figure = new_figure((width / 100, width / 100 * _aspect(window)))
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        _draw_panel(axes, _shades(log_density, window, resolution), None)
        axes.set_axis_off()
        destination: Any = file
        figure.savefig(destination, dpi=100, format="png", facecolor="white", metadata={"Software": None})


class _Shades(NamedTuple):
    """A density on a grid, and the levels of its contours."""

    window: Box
    first: np.ndarray
    second: np.ndarray
    height: np.ndarray
    levels: list[float]


def _aspect(window: Box) -> float:
    left, right, bottom, top = window
    if not (left < right and bottom < top):
        raise ValueError(f"`window` must be (left, right, bottom, top), got {tuple(window)}.")
    return (top - bottom) / (right - left)


def _shades(log_density: Callable[[Array], Array], window: Box, resolution: int) -> _Shades:
    check_count("resolution", resolution, least=10)
    left, right, bottom, top = window
    first, second = jnp.linspace(left, right, resolution), jnp.linspace(bottom, top, resolution)

    def row(b: Array) -> Array:
        return jax.vmap(lambda a: log_density(jnp.stack([a, b])))(first)

    values = np.asarray(jax.lax.map(row, second), np.float64)
    height = np.exp(values - np.max(values))
    return _Shades(window, np.asarray(first), np.asarray(second), height, _mass_levels(height))


def _mass_levels(height: np.ndarray) -> list[float]:
    """The heights above which the shares `_MASSES` of the mass lie, from the largest share (lowest height) on."""
    ordered = np.sort(height, axis=None)[::-1]
    share = np.cumsum(ordered) / np.sum(ordered)
    levels = [float(ordered[np.searchsorted(share, mass)]) for mass in _MASSES]
    return levels if np.all(np.diff(levels) > 0) else list(np.linspace(0.05, 0.8, len(_MASSES)))


def _draw_panel(axes: "matplotlib.axes.Axes", shades: _Shades, particles: Particles | None) -> None:
    left, right, bottom, top = shades.window
    edges = [*shades.levels, 1.01]  # the largest height is 1
    axes.contourf(shades.first, shades.second, shades.height, levels=edges, colors=_SHADES)
    if particles is not None:
        x, y = np.asarray(particles).T
        axes.scatter(x, y, s=9, color=_PARTICLE, edgecolors="white", linewidths=0.35, zorder=3)
        outside = int(np.sum(~((x >= left) & (x <= right) & (y >= bottom) & (y <= top))))
        if outside:
            _write(axes, f"{outside} outside", 0.97, 0.03, QUIET, ha="right", va="bottom")
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_even_numbers())


def _write(axes: "matplotlib.axes.Axes", text: str, x: float, y: float, colour: str, **alignment: str) -> None:
    """Write a short text into a panel, on a white background to be readable above particles."""
    plate = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.8}
    place: dict[str, Any] = {"transform": axes.transAxes, **alignment}
    axes.text(x, y, text, fontsize=6.5, color=colour, bbox=plate, zorder=4, **place)


def _even_numbers() -> Any:
    from matplotlib.ticker import MultipleLocator

    return MultipleLocator(2)


def _grid(
    rows: Sequence[Panels],
    columns: Sequence[str],
    notes: Sequence[Sequence[str]] | None,
    title: str | None,
    resolution: int,
) -> "matplotlib.figure.Figure":
    _check_grid(rows, columns, notes)
    matplotlib = load()
    side = 1.55  # inches
    heights = [_aspect(row.window) for row in rows]
    same = len({tuple(row.window) for row in rows}) == 1  # then only the last row has tick labels below
    shades: dict[Any, _Shades] = {}
    with matplotlib.rc_context(STYLE):
        extra = (0.25 if title else 0.0) + (0.4 if same else 0.25 + 0.17 * len(rows))
        figure = new_figure((side * len(columns) + 0.6, 0.95 * side * sum(heights) + extra))
        grid = figure.subplots(len(rows), len(columns), squeeze=False, height_ratios=heights)
        for i, row in enumerate(rows):
            drawn = (row.log_density, tuple(row.window))
            if drawn not in shades:
                shades[drawn] = _shades(row.log_density, row.window, resolution)
            for j, particles in enumerate(row.particles):
                _draw_panel(grid[i, j], shades[drawn], particles)
                grid[i, j].tick_params(labelleft=j == 0, labelbottom=i == len(rows) - 1 or not same)
                if notes is not None:
                    _write(grid[i, j], notes[i][j], 0.03, 0.97, INK, va="top")
            grid[i, 0].set_ylabel(row.label)
        for axes, heading in zip(grid[0], columns, strict=True):
            axes.set_title(heading)
        if title:
            figure.suptitle(title, fontsize=9.5)
    return figure


def _check_grid(rows: Sequence[Panels], columns: Sequence[str], notes: Sequence[Sequence[str]] | None) -> None:
    number = len(columns)
    if not rows or not columns:
        raise ValueError(f"`rows` and `columns` must not be empty, got {len(rows)} rows and {number} columns.")
    for i, row in enumerate(rows):
        for name, cells in (("rows", row.particles), ("notes", columns if notes is None else notes[i])):
            if len(cells) != number:
                found = f"{len(cells)} in {row.label!r}"
                raise ValueError(f"`{name}` must have one entry for each of the {number} columns, got {found}.")
