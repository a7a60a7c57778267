"""Module paths and names of version 0.1, for one more release: each gives a `DeprecationWarning`."""

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

PUBLIC = {
    "distributed": "inference.distributed",
    "initial": "targets.initial",
    "models": "targets.models",
    "plot": "results.plot",
}
"""Modules that are used by these names, and stay so."""

MOVED = {
    "_types": "core.types",
    "automatic": "inference.automatic",
    "automatic.quality": "inference.automatic.quality",
    "automatic.sample": "inference.automatic.sample",
    "bandwidth": "kernels.bandwidth",
    "checkpoint": "core.checkpoint",
    "combine": "results.combine",
    "curvature": "targets.curvature",
    "diagnostics": "kernels.diagnostics",
    "ensemble": "samplers.ensemble",
    "fit": "inference.fit",
    "graphical": "kernels.graphical",
    "half_bayesian": "samplers.half_bayesian",
    "hamiltonian": "samplers.hamiltonian",
    "kernel_rule": "samplers.kernel_rule",
    "kfac": "targets.kfac",
    "langevin": "samplers.langevin",
    "likelihood": "targets.likelihood",
    "linear": "core.operators",
    "matrix_kernel": "kernels.matrix",
    "metric": "core.metric",
    "mixture": "kernels.mixture",
    "particles": "core.particles",
    "prediction": "results.prediction",
    "programs": "core.programs",
    "radial": "kernels.radial",
    "radial.gpu": "kernels.radial.gpu",
    "reparam": "targets.supports",
    "report": "results.report",
    "result": "results.result",
    "sampler": "samplers.sampler",
    "scalar_kernel": "kernels.scalar",
    "stein": "samplers.stein",
    "target": "targets.target",
    "verdict": "results.verdict",
}
"""Old paths and new ones, below `steinkern`."""

RENAMED = {"Plain": "FixedKernel", "Averaged": "AverageMetric", "MixtureAt": "AnchorMixture"}
"""Public names that have changed."""


class _Moved(ModuleType):
    """A module at its old path: every name is that of the module at the new one."""

    def __init__(self, old: str, new: str):
        super().__init__(old, f"Moved to {new}.")
        self.__dict__.update(_new=new, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the import system and by tools, of every module
            raise AttributeError(name)
        new = self.__dict__["_new"]
        found = getattr(importlib.import_module(new), RENAMED.get(name, name))
        warnings.warn(f"{self.__name__} is now {new}; use the names of `steinkern` itself.", DeprecationWarning, 2)
        return found


def keep_old_paths() -> None:
    """Let the old paths import. They are entered where imports look first, so no attribute of the package changes."""
    for old, new in MOVED.items():
        sys.modules[f"steinkern.{old}"] = _Moved(f"steinkern.{old}", f"steinkern.{new}")
    for public, new in PUBLIC.items():
        sys.modules[f"steinkern.{public}"] = importlib.import_module(f"steinkern.{new}")
