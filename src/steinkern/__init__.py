"""Posteriors as a handful of well-placed particles: Stein variational inference with matrix-valued kernels."""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from types import ModuleType as _ModuleType

from . import initial as initial
from . import interop as interop
from . import models as models
from . import plot as plot
from .automatic import Cost as Cost
from .automatic import Quality as Quality
from .automatic import Sampled as Sampled
from .automatic import sample as sample
from .bandwidth import AbstractBandwidth as AbstractBandwidth
from .bandwidth import Median as Median
from .caution import SteinWarning as SteinWarning
from .checkpoint import CheckpointError as CheckpointError
from .combine import combine as combine
from .curvature import AbstractCurvature as AbstractCurvature
from .curvature import EmpiricalFisher as EmpiricalFisher
from .curvature import Fisher as Fisher
from .curvature import GaussNewton as GaussNewton
from .curvature import Hessian as Hessian
from .diagnostics import Moments as Moments
from .diagnostics import ksd2 as ksd2
from .diagnostics import mmd2 as mmd2
from .diagnostics import moments as moments
from .diagnostics import stein_ratio as stein_ratio
from .distributed import device_mesh as device_mesh
from .ensemble import Ensemble as Ensemble
from .ensemble import ensemble as ensemble
from .fit import fit as fit
from .graphical import Graphical as Graphical
from .half_bayesian import HalfBayesian as HalfBayesian
from .half_bayesian import half_bayesian as half_bayesian
from .hamiltonian import Hamiltonian as Hamiltonian
from .interop.blackjax import as_blackjax as as_blackjax
from .kernel_rule import AbstractKernelRule as AbstractKernelRule
from .kernel_rule import Averaged as Averaged
from .kernel_rule import MetricSettings as MetricSettings
from .kernel_rule import MixtureAt as MixtureAt
from .kernel_rule import Plain as Plain
from .kfac import KFAC as KFAC
from .langevin import PSGLD as PSGLD
from .langevin import SGLD as SGLD
from .langevin import psgld as psgld
from .langevin import sgld as sgld
from .likelihood import AbstractLikelihood as AbstractLikelihood
from .likelihood import Bernoulli as Bernoulli
from .likelihood import Categorical as Categorical
from .likelihood import Gaussian as Gaussian
from .likelihood import GaussianNoise as GaussianNoise
from .linear import AbstractOperator as AbstractOperator
from .linear import Blocks as Blocks
from .linear import Dense as Dense
from .linear import Diagonal as Diagonal
from .linear import Kronecker as Kronecker
from .matrix_kernel import AbstractMatrixKernel as AbstractMatrixKernel
from .matrix_kernel import Isotropic as Isotropic
from .matrix_kernel import Linear as Linear
from .matrix_kernel import PerBlock as PerBlock
from .matrix_kernel import Preconditioned as Preconditioned
from .matrix_kernel import Tilted as Tilted
from .matrix_kernel import Transformed as Transformed
from .matrix_kernel import UserKernel as UserKernel
from .metric import AbstractMetric as AbstractMetric
from .metric import DenseMetric as DenseMetric
from .mixture import Mixture as Mixture
from .particles import Layout as Layout
from .particles import Scored as Scored
from .particles import merge as merge
from .particles import split as split
from .prediction import Prediction as Prediction
from .programs import release_programs as release_programs
from .reparam import AbstractSupport as AbstractSupport
from .reparam import greater_than as greater_than
from .reparam import interval as interval
from .reparam import less_than as less_than
from .reparam import ordered as ordered
from .reparam import positive as positive
from .reparam import real as real
from .reparam import simplex as simplex
from .result import DivergedError as DivergedError
from .result import Faults as Faults
from .result import History as History
from .result import Result as Result
from .result import Status as Status
from .sampler import AbstractSampler as AbstractSampler
from .sampler import Info as Info
from .scalar_kernel import IMQ as IMQ
from .scalar_kernel import RBF as RBF
from .scalar_kernel import AbstractScalarKernel as AbstractScalarKernel
from .stein import SVGD as SVGD
from .stein import SVN as SVN
from .stein import GradientFreeSVGD as GradientFreeSVGD
from .stein import gradient_free_svgd as gradient_free_svgd
from .stein import matrix_svgd as matrix_svgd
from .stein import svgd as svgd
from .stein import svn as svn
from .target import AbstractTarget as AbstractTarget
from .target import LogDensity as LogDensity
from .target import Posterior as Posterior
from .verdict import Verdict as Verdict

try:
    __version__ = _version("steinkern")
except _NotInstalled:  # run from the source tree
    __version__ = "0+unknown"


def __dir__() -> list[str]:
    """The public names: of the modules, those that are meant to be used by their own name."""
    modules = ("initial", "interop", "models", "plot")
    own = (name for name, value in globals().items() if name in modules or not isinstance(value, _ModuleType))
    return sorted(name for name in own if name == "__version__" or not name.startswith("_"))
