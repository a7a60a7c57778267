"""The style of all figures: colours, settings, figures without a display, and reproducible files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.extras import install_command
from ...core.types import check_count

if TYPE_CHECKING:
    import matplotlib.figure

COLOURS = ("#000000", "#0072B2", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#E69F00")
"""A palette for colour-blind readers (Okabe and Ito), in the order of use."""

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


def check_available() -> None:
    """Raise `ImportError`, with the command to install it, unless matplotlib can be imported."""
    load()


def save(figure: "matplotlib.figure.Figure", path: str | Path, dots_per_inch: int = 130) -> Path:
    """Write the figure in the format of the path's suffix, such as ".png" or ".svg", and return the path.

    The files hold no date and no version, so that the same figure gives the same bytes.
    """
    check_count("dots_per_inch", dots_per_inch)
    path = Path(path)
    matplotlib = load()
    unsigned = {"Date": None} if path.suffix == ".svg" else {"Software": None} if path.suffix == ".png" else {}
    with matplotlib.rc_context({"svg.hashsalt": "steinkern", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=dots_per_inch, facecolor="white", metadata=unsigned)
    return path


def load() -> Any:
    """The matplotlib module; `ImportError` with the command to install it where it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"figures need matplotlib: {install_command('plot')}") from error
    return matplotlib


def new_figure(size: tuple[float, float]) -> "matplotlib.figure.Figure":
    """An empty figure of this size in inches, independent of matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02))
    FigureCanvasAgg(figure)  # draws without a display and without pyplot's registry of figures
    return figure
