"""Posteriors as a handful of well-placed particles: Stein variational inference with matrix-valued kernels."""

import warnings as _warnings
from importlib.metadata import version as _version

import jax as _jax

from . import interop, kernels, linalg, results, samplers, targets
from .core.archive import CheckpointError
from .core.messages import Notice, SteinWarning
from .core.particles import merge, split
from .core.programs import release_programs
from .inference.distributed import device_mesh
from .inference.fit import fit
from .inference.sample import sample
from .interop.blackjax import as_blackjax
from .kernels import IMQ, RBF, Graphical, Median, ksd2, mmd2, stein_ratio
from .results import Diagnostics, DivergedError, History, Result, Status, combine, load, plot
from .samplers import ensemble, gradient_free_svgd, half_bayesian, matrix_svgd, psgld, sgld, svgd, svn
from .targets import (
    Bernoulli,
    Categorical,
    EmpiricalFisher,
    Fisher,
    Gaussian,
    GaussianNoise,
    GaussNewton,
    Hessian,
    LogDensity,
    Posterior,
    greater_than,
    initial,
    interval,
    kfac,
    less_than,
    ordered,
    positive,
    simplex,
)
from .targets.kfac import KFAC

__all__ = [
    "IMQ",
    "KFAC",
    "RBF",
    "Bernoulli",
    "Categorical",
    "CheckpointError",
    "Diagnostics",
    "DivergedError",
    "EmpiricalFisher",
    "Fisher",
    "GaussNewton",
    "Gaussian",
    "GaussianNoise",
    "Graphical",
    "Hessian",
    "History",
    "LogDensity",
    "Median",
    "Notice",
    "Posterior",
    "Result",
    "Status",
    "SteinWarning",
    "as_blackjax",
    "combine",
    "device_mesh",
    "ensemble",
    "fit",
    "gradient_free_svgd",
    "greater_than",
    "half_bayesian",
    "initial",
    "interop",
    "interval",
    "kernels",
    "kfac",
    "ksd2",
    "less_than",
    "linalg",
    "load",
    "matrix_svgd",
    "merge",
    "mmd2",
    "ordered",
    "plot",
    "positive",
    "psgld",
    "release_programs",
    "results",
    "sample",
    "samplers",
    "sgld",
    "simplex",
    "split",
    "stein_ratio",
    "svgd",
    "svn",
    "targets",
]
__version__ = _version("steinkern")

if (0, 10) <= _jax.__version_info__ < (0, 11, 1):
    _warnings.warn(
        f"jax {_jax.__version__} may hang in linear algebra on a CPU: install jax 0.9.2, or 0.11.1 or newer.",
        stacklevel=2,
    )
