"""Targets: log densities, supports, likelihoods, curvature and initial particles.

They do not depend on kernels.
"""

from ..core.particles import Layout as Layout
from . import initial as initial
from . import kfac as kfac
from .curvature import AbstractCurvature as AbstractCurvature
from .curvature import EmpiricalFisher as EmpiricalFisher
from .curvature import Fisher as Fisher
from .curvature import GaussNewton as GaussNewton
from .curvature import Hessian as Hessian
from .likelihood import AbstractLikelihood as AbstractLikelihood
from .likelihood import Bernoulli as Bernoulli
from .likelihood import Categorical as Categorical
from .likelihood import Gaussian as Gaussian
from .likelihood import GaussianNoise as GaussianNoise
from .supports import AbstractSupport as AbstractSupport
from .supports import greater_than as greater_than
from .supports import interval as interval
from .supports import less_than as less_than
from .supports import ordered as ordered
from .supports import positive as positive
from .supports import real as real
from .supports import simplex as simplex
from .target import AbstractTarget as AbstractTarget
from .target import BoundTarget as BoundTarget
from .target import LogDensity as LogDensity
from .target import Posterior as Posterior
