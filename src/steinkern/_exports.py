"""The public names of `steinkern`, by the modules that define them; they are imported on first use.

`steinkern/__init__.py` lists the same names for type checkers and editors; `tests/test_import.py` compares the two.
"""

from collections.abc import Callable
from types import ModuleType

MODULES = {
    "distributed": "inference.distributed",
    "initial": "targets.initial",
    "interop": "interop",
    "models": "targets.models",
    "plot": "results.plot",
}
"""Modules that are used by these names: `steinkern.plot` is `steinkern.results.plot`."""

_NAMES_OF = {
    "core.checkpoint": "CheckpointError",
    "core.compilation_cache": "compilation_cache",
    "core.metric": "AbstractMetric DenseMetric",
    "core.notices": "Notice",
    "core.operators": "AbstractOperator Blocks Dense Diagonal Kronecker Stack",
    "core.particles": "Layout Scored merge split",
    "core.programs": "release_programs",
    "core.types": "SteinWarning",
    "inference.automatic": "Cost Quality Sampled sample",
    "inference.calibration": "Calibration sbc",
    "inference.distributed": "device_mesh",
    "inference.fit": "fit",
    "interop.blackjax": "as_blackjax",
    "kernels.bandwidth": "AbstractBandwidth Median",
    "kernels.diagnostics": "Moments ksd2 mmd2 moments stein_ratio",
    "kernels.graphical": "Graphical",
    "kernels.matrix": "AbstractMatrixKernel Isotropic Linear PerBlock Tilted Transformed UserKernel",
    "kernels.mixture": "Mixture",
    "kernels.preconditioned": "Preconditioned",
    "kernels.sums": "Affine Sum",
    "kernels.scalar": "IMQ RBF AbstractScalarKernel",
    "results.class_probabilities": "ClassCalibration ClassProbabilities",
    "results.combine": "combine",
    "results.comparison": "Comparison",
    "results.importance": "PSIS gaussian_psis psis",
    "results.loading": "load",
    "results.prediction": "Prediction",
    "results.predictive_check": "PredictiveCheck predictive_check",
    "results.result": "ChainHistory DivergedError Faults History Result Status",
    "results.verdict": "Verdict",
    "samplers.ensemble": "Ensemble ensemble",
    "samplers.half_bayesian": "HalfBayesian half_bayesian",
    "samplers.hamiltonian": "Hamiltonian",
    "samplers.kernel_rule": "AbstractKernelRule AnchorMixture AverageMetric FixedKernel MetricSettings",
    "samplers.langevin": "PSGLD SGLD psgld sgld",
    "samplers.sampler": "AbstractSampler Info",
    "samplers.stein": "SVGD SVN GradientFreeSVGD gradient_free_svgd matrix_svgd svgd svn",
    "samplers.untuned": "Untuned",
    "targets.curvature": "AbstractCurvature EmpiricalFisher Fisher GaussNewton Hessian",
    "targets.kfac": "KFAC DiagonalBlock ExactBlock KroneckerBlock UnitwiseBlock",
    "targets.likelihood": "AbstractLikelihood Bernoulli Categorical Gaussian GaussianNoise",
    "targets.supports": "AbstractSupport greater_than interval less_than ordered positive real simplex",
    "targets.target": "AbstractTarget LogDensity Posterior",
}

MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
"""For each public name the module, below `steinkern`, that defines it."""

PACKAGES = ("core", "experiments", "inference", "kernels", "results", "samplers", "targets")
"""The packages of the library, which are attributes of `steinkern` without an import of their own."""


def import_submodules(package: str) -> Callable[[str], ModuleType]:
    """A `__getattr__` for a package that imports its modules on first use, as in `steinkern.kernels.scalar`."""

    def get(name: str) -> ModuleType:
        import importlib.util

        path = f"{package}.{name}"
        if name.startswith("__") or importlib.util.find_spec(path) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(path)

    return get
