"""Posteriors as a handful of well-placed particles: Stein variational inference with matrix-valued kernels.

Names are imported on first use, so that `import steinkern` takes milliseconds: JAX is imported with the first of them.
"""

import importlib as _importlib
import os as _os
import sys as _sys
import warnings as _warnings
from typing import TYPE_CHECKING
from typing import Any as _Any

from ._exports import MODULE_OF as _MODULE_OF
from ._exports import MODULES as _MODULES
from ._exports import PACKAGES as _PACKAGES
from ._moved import MOVED as _MOVED
from ._moved import RENAMED as _RENAMED
from ._moved import keep_old_paths as _keep_old_paths
from ._moved import read_environment as _read_environment

if TYPE_CHECKING:  # for type checkers and editors; the table of `_exports` is what runs
    from . import interop as interop
    from .core.checkpoint import CheckpointError as CheckpointError
    from .core.compilation_cache import compilation_cache as compilation_cache
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
    from .kernels.matrix import Tilted as Tilted
    from .kernels.matrix import Transformed as Transformed
    from .kernels.matrix import UserKernel as UserKernel
    from .kernels.mixture import Mixture as Mixture
    from .kernels.preconditioned import Preconditioned as Preconditioned
    from .kernels.scalar import IMQ as IMQ
    from .kernels.scalar import RBF as RBF
    from .kernels.scalar import AbstractScalarKernel as AbstractScalarKernel
    from .kernels.sums import Affine as Affine
    from .kernels.sums import Sum as Sum
    from .results import plot as plot
    from .results.class_probabilities import ClassCalibration as ClassCalibration
    from .results.class_probabilities import ClassProbabilities as ClassProbabilities
    from .results.combine import combine as combine
    from .results.comparison import Comparison as Comparison
    from .results.importance import PSIS as PSIS
    from .results.importance import gaussian_psis as gaussian_psis
    from .results.importance import psis as psis
    from .results.loading import load as load
    from .results.prediction import Prediction as Prediction
    from .results.predictive_check import PredictiveCheck as PredictiveCheck
    from .results.predictive_check import predictive_check as predictive_check
    from .results.result import ChainHistory as ChainHistory
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
    from .samplers.untuned import Untuned as Untuned
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

    __version__: str

_keep_old_paths()
if "jax" in _sys.modules and _os.environ.get("STEINKERN_CACHE"):  # else with the first name that imports JAX
    _read_environment()


def __dir__() -> list[str]:
    """The public names, those of modules included."""
    return sorted([*_MODULE_OF, *_MODULES, "__version__"])


if not TYPE_CHECKING:  # a type checker would take every name for a known one
    __all__ = sorted([*_MODULE_OF, *_MODULES])

    def __getattr__(name: str) -> _Any:
        """Import a public name on first use; also modules at their old paths, and classes by their old names."""
        if name == "__version__":
            value = _find_version()
        elif name in _MODULE_OF or name in _MODULES:
            value = _import_public(name)
        elif name in _PACKAGES:
            value = _importlib.import_module(f"{__name__}.{name}")
        elif name in _MOVED:
            return _sys.modules[f"{__name__}.{name}"]
        elif name in _RENAMED:
            new = _RENAMED[name]
            _warnings.warn(f"`steinkern.{name}` is now `steinkern.{new}`.", DeprecationWarning, stacklevel=2)
            return _import_public(new)
        else:
            module = _sys.modules[__name__]  # Python suggests a name of the module where the error holds both
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=module)
        globals()[name] = value  # the next use does not come here
        return value


def _import_public(name: str) -> _Any:
    _read_environment()
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(_importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def _find_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("steinkern")
    except PackageNotFoundError:  # run from the source tree
        return "0+unknown"
