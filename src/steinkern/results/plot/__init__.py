"""Figures: two-dimensional densities with particles on top, grids of them, curves along a run, reliability diagrams.

Matplotlib is imported inside the functions (the extra `plot`). Its global state is not changed: every
function returns a new `Figure` that needs no display.
"""

from .calibration import reliability as reliability
from .lines import Curve as Curve
from .lines import Level as Level
from .lines import curves as curves
from .plane import Box as Box
from .plane import Panels as Panels
from .plane import Particles as Particles
from .plane import density as density
from .plane import particle_grid as particle_grid
from .plane import save_backdrop as save_backdrop
from .plane import target_rows as target_rows
from .predictive import statistic_histograms as statistic_histograms
from .ranks import rank_ecdf as rank_ecdf
from .style import COLOURS as COLOURS
from .style import STYLE as STYLE
from .style import check_available as check_available
from .style import save as save
