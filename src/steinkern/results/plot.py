"""Figures of two-dimensional densities with particles on top.

Matplotlib (the extra `plot`) is imported by the first figure. Its global state is not changed: every function returns a
new `Figure` that needs no display.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.extras import install_command

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

INK, QUIET = "#262626", "#6B6B6B"
STYLE = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "axes.edgecolor": "#B5B5B5",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.titlecolor": INK,
    "xtick.color": "#B5B5B5",
    "ytick.color": "#B5B5B5",
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "text.color": INK,
}
"""Matplotlib settings that all figures share, for `matplotlib.rc_context`."""
_PARTICLE = "#D55E00"
_SHADES = ("#E4ECF5", "#C8D8E9", "#A3BEDA", "#7BA1C7")  # light to dark, all lighter than the particles
_MASSES = (0.99, 0.9, 0.7, 0.4)

Box = tuple[float, float, float, float]
Particles = Float[Array, "n 2"] | Float[np.ndarray, "n 2"]


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
    with load_matplotlib().rc_context(STYLE):
        figure = new_figure((3.2, 3.2 * aspect_of(window) + (0.3 if title else 0.0)))
        axes = figure.add_subplot()
        draw_density(axes, log_density, window, particles, resolution)
        if title:
            axes.set_title(title)
    return figure


def save(figure: "matplotlib.figure.Figure", path: str | Path, dots_per_inch: int = 130) -> Path:
    """Write the figure in the format of the path's suffix, such as ".png" or ".svg", and return the path.

    The files hold no date and no version, so that the same figure gives the same bytes.
    """
    path = Path(path)
    unsigned = {"Date": None} if path.suffix == ".svg" else {"Software": None} if path.suffix == ".png" else {}
    with load_matplotlib().rc_context({"svg.hashsalt": "steinkern", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=dots_per_inch, facecolor="white", metadata=unsigned)
    return path


def load_matplotlib() -> Any:
    """Matplotlib with its figures, without pyplot; `ImportError` with the command to install it where it is missing."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ImportError(f"figures need matplotlib: {install_command('plot')}") from error
    return matplotlib


def new_figure(size: tuple[float, float]) -> "matplotlib.figure.Figure":
    """An empty figure of this size in inches, independent of matplotlib's global state."""
    figure = load_matplotlib().figure.Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02)
    return figure


def aspect_of(window: Box) -> float:
    """Height over width."""
    left, right, bottom, top = window
    if not (left < right and bottom < top):
        raise ValueError(f"`window` must be (left, right, bottom, top), got {tuple(window)}.")
    return (top - bottom) / (right - left)


def draw_density(
    axes: "matplotlib.axes.Axes",
    log_density: Callable[[Array], Array],
    window: Box,
    particles: Particles | None = None,
    resolution: int = 300,
) -> None:
    """Draw the panel of `density` into axes."""
    left, right, bottom, top = window
    first, second = np.linspace(left, right, resolution), np.linspace(bottom, top, resolution)
    heights = _heights(log_density, window, resolution)
    axes.contourf(first, second, heights, levels=[*mass_levels(heights), 1.01], colors=_SHADES)
    if particles is not None:
        x, y = np.asarray(particles).T
        axes.scatter(x, y, s=9, color=_PARTICLE, edgecolors="white", linewidths=0.35, zorder=3)
        outside = int(np.sum(~((x >= left) & (x <= right) & (y >= bottom) & (y <= top))))
        if outside:
            plate = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.8}
            corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
            axes.text(0.97, 0.03, f"{outside} outside", fontsize=6.5, color=QUIET, bbox=plate, zorder=4, **corner)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(load_matplotlib().ticker.MultipleLocator(2))


def mass_levels(heights: Float[np.ndarray, "rows columns"]) -> list[float]:
    """The heights above which the shares 99, 90, 70 and 40 percent of the mass lie."""
    ordered = np.sort(heights, axis=None)[::-1]
    share = np.cumsum(ordered) / np.sum(ordered)
    levels = [float(ordered[np.searchsorted(share, mass)]) for mass in _MASSES]
    return levels if np.all(np.diff(levels) > 0) else list(np.linspace(0.05, 0.8, len(_MASSES)))


@lru_cache(maxsize=1)  # panels of a grid show one density
def _heights(log_density: Callable[[Array], Array], window: Box, resolution: int) -> Float[np.ndarray, "rows columns"]:
    """The density on a grid, over its largest value there."""
    left, right, bottom, top = window
    first = jnp.linspace(left, right, resolution)

    def row(b: Array) -> Array:
        return jax.vmap(lambda a: log_density(jnp.stack([a, b])))(first)

    values = np.asarray(jax.lax.map(row, jnp.linspace(bottom, top, resolution)), np.float64)
    return np.exp(values - np.max(values))
