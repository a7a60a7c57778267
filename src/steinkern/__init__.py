"""Posteriors as a handful of well-placed particles: Stein variational inference with matrix-valued kernels."""

import sys as _sys
import warnings as _warnings
from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from types import ModuleType as _ModuleType
from typing import Any as _Any

from . import interop as interop
from ._moved import MOVED as _MOVED
from ._moved import RENAMED as _RENAMED
from ._moved import keep_old_paths as _keep_old_paths
from .core.checkpoint import CheckpointError as CheckpointError
from .core.compilation_cache import compilation_cache as compilation_cache
from .core.compilation_cache import switch_on_by_environment as _switch_on_by_environment
from .core.metric import AbstractMetric as AbstractMetric
from .core.metric import DenseMetric as DenseMetric
from .core.notices import Notice as Notice
from .core.operators import AbstractOperator as AbstractOperator
from .core.operators import Blocks as Blocks
from .core.operators import Dense as Dense
from .core.operators import Diagonal as Diagonal
from .core.operators import Kronecker as Kronecker
from .core.operators import Stack as Stack
from .core.particles import Layout as Layout
from .core.particles import Scored as Scored
from .core.particles import merge as merge
from .core.particles import split as split
from .core.programs import release_programs as release_programs
from .core.types import SteinWarning as SteinWarning
from .inference import distributed as distributed
from .inference.automatic import Cost as Cost
from .inference.automatic import Quality as Quality
from .inference.automatic import Sampled as Sampled
from .inference.automatic import sample as sample
from .inference.calibration import Calibration as Calibration
from .inference.calibration import sbc as sbc
from .inference.distributed import device_mesh as device_mesh
from .inference.fit import fit as fit
from .interop.blackjax import as_blackjax as as_blackjax
from .kernels.bandwidth import AbstractBandwidth as AbstractBandwidth
from .kernels.bandwidth import Median as Median
from .kernels.diagnostics import Moments as Moments
from .kernels.diagnostics import ksd2 as ksd2
from .kernels.diagnostics import mmd2 as mmd2
from .kernels.diagnostics import moments as moments
from .kernels.diagnostics import stein_ratio as stein_ratio
from .kernels.graphical import Graphical as Graphical
from .kernels.matrix import AbstractMatrixKernel as AbstractMatrixKernel
from .kernels.matrix import Isotropic as Isotropic
from .kernels.matrix import Linear as Linear
from .kernels.matrix import PerBlock as PerBlock
from .kernels.matrix import Preconditioned as Preconditioned
from .kernels.matrix import Tilted as Tilted
from .kernels.matrix import Transformed as Transformed
from .kernels.matrix import UserKernel as UserKernel
from .kernels.mixture import Mixture as Mixture
from .kernels.scalar import IMQ as IMQ
from .kernels.scalar import RBF as RBF
from .kernels.scalar import AbstractScalarKernel as AbstractScalarKernel
from .results import plot as plot
from .results.combine import combine as combine
from .results.importance import PSIS as PSIS
from .results.importance import gaussian_psis as gaussian_psis
from .results.importance import psis as psis
from .results.loading import load as load
from .results.prediction import Prediction as Prediction
from .results.predictive import PredictiveCheck as PredictiveCheck
from .results.predictive import predictive_check as predictive_check
from .results.result import DivergedError as DivergedError
from .results.result import Faults as Faults
from .results.result import History as History
from .results.result import Result as Result
from .results.result import Status as Status
from .results.verdict import Verdict as Verdict
from .samplers.ensemble import Ensemble as Ensemble
from .samplers.ensemble import ensemble as ensemble
from .samplers.half_bayesian import HalfBayesian as HalfBayesian
from .samplers.half_bayesian import half_bayesian as half_bayesian
from .samplers.hamiltonian import Hamiltonian as Hamiltonian
from .samplers.kernel_rule import AbstractKernelRule as AbstractKernelRule
from .samplers.kernel_rule import AnchorMixture as AnchorMixture
from .samplers.kernel_rule import AverageMetric as AverageMetric
from .samplers.kernel_rule import FixedKernel as FixedKernel
from .samplers.kernel_rule import MetricSettings as MetricSettings
from .samplers.langevin import PSGLD as PSGLD
from .samplers.langevin import SGLD as SGLD
from .samplers.langevin import psgld as psgld
from .samplers.langevin import sgld as sgld
from .samplers.sampler import AbstractSampler as AbstractSampler
from .samplers.sampler import Info as Info
from .samplers.stein import SVGD as SVGD
from .samplers.stein import SVN as SVN
from .samplers.stein import GradientFreeSVGD as GradientFreeSVGD
from .samplers.stein import gradient_free_svgd as gradient_free_svgd
from .samplers.stein import matrix_svgd as matrix_svgd
from .samplers.stein import svgd as svgd
from .samplers.stein import svn as svn
from .targets import initial as initial
from .targets import models as models
from .targets.curvature import AbstractCurvature as AbstractCurvature
from .targets.curvature import EmpiricalFisher as EmpiricalFisher
from .targets.curvature import Fisher as Fisher
from .targets.curvature import GaussNewton as GaussNewton
from .targets.curvature import Hessian as Hessian
from .targets.kfac import KFAC as KFAC
from .targets.kfac import DiagonalBlock as DiagonalBlock
from .targets.kfac import ExactBlock as ExactBlock
from .targets.kfac import KroneckerBlock as KroneckerBlock
from .targets.kfac import UnitwiseBlock as UnitwiseBlock
from .targets.likelihood import AbstractLikelihood as AbstractLikelihood
from .targets.likelihood import Bernoulli as Bernoulli
from .targets.likelihood import Categorical as Categorical
from .targets.likelihood import Gaussian as Gaussian
from .targets.likelihood import GaussianNoise as GaussianNoise
from .targets.supports import AbstractSupport as AbstractSupport
from .targets.supports import greater_than as greater_than
from .targets.supports import interval as interval
from .targets.supports import less_than as less_than
from .targets.supports import ordered as ordered
from .targets.supports import positive as positive
from .targets.supports import real as real
from .targets.supports import simplex as simplex
from .targets.target import AbstractTarget as AbstractTarget
from .targets.target import LogDensity as LogDensity
from .targets.target import Posterior as Posterior

_keep_old_paths()
_switch_on_by_environment()

try:
    __version__ = _version("steinkern")
except _NotInstalled:  # run from the source tree
    __version__ = "0+unknown"


def __dir__() -> list[str]:
    """The public names: of the modules, those that are meant to be used by their own name."""
    modules = ("distributed", "initial", "interop", "models", "plot")
    own = (name for name, value in globals().items() if name in modules or not isinstance(value, _ModuleType))
    return sorted(name for name in own if name == "__version__" or not name.startswith("_"))


def __getattr__(name: str) -> _Any:
    """Modules at their old paths, and classes by their old names."""
    if name in _MOVED:
        return _sys.modules[f"{__name__}.{name}"]
    if name in _RENAMED:
        new = _RENAMED[name]
        _warnings.warn(f"`steinkern.{name}` is now `steinkern.{new}`.", DeprecationWarning, stacklevel=2)
        return globals()[new]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
