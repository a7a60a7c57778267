"""Scalar and matrix-valued kernels, their bandwidths, the sums over pairs, and the diagnostics built on them.

Kernels do not call the target: its scores are passed to them as data.
"""

from ..core.particles import Scored as Scored
from .bandwidth import AbstractBandwidth as AbstractBandwidth
from .bandwidth import Median as Median
from .diagnostics import ksd2 as ksd2
from .diagnostics import mmd2 as mmd2
from .diagnostics import stein_ratio as stein_ratio
from .graphical import Graphical as Graphical
from .matrix import AbstractMatrixKernel as AbstractMatrixKernel
from .matrix import Isotropic as Isotropic
from .matrix import Linear as Linear
from .matrix import PerBlock as PerBlock
from .matrix import Tilted as Tilted
from .matrix import Transformed as Transformed
from .matrix import UserKernel as UserKernel
from .mixture import Mixture as Mixture
from .preconditioned import Preconditioned as Preconditioned
from .scalar import IMQ as IMQ
from .scalar import RBF as RBF
from .scalar import AbstractScalarKernel as AbstractScalarKernel
from .sums import Affine as Affine
from .sums import Sum as Sum
