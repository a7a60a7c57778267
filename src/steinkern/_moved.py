"""Module paths and names of version 0.1, for one more release with a `DeprecationWarning`; and short public paths."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ._exports import MODULES

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

DIVIDED = {"core.metric": "core.block_metric", "kernels.matrix": "kernels.preconditioned"}
"""Modules of which a part has moved on to another one."""

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
        read_environment()
        module, name = importlib.import_module(new), RENAMED.get(name, name)
        other = DIVIDED.get(new.partition(".")[2])
        if other is not None and not hasattr(module, name):
            module = importlib.import_module(f"steinkern.{other}")
        found = getattr(module, name)
        warnings.warn(f"{self.__name__} is now {new}; use the names of `steinkern` itself.", DeprecationWarning, 2)
        return found


class _PublicModules:
    """Imports `steinkern.plot` as `steinkern.results.plot`, and the other modules with a short public path.

    A finder and a loader of the import system. It derives from none of its base classes, whose import takes longer than
    that of this package.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        package, _, name = fullname.partition(".")
        loader: Any = self
        return ModuleSpec(fullname, loader) if package == "steinkern" and name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make the module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Enter the module at its place for this path; the import system takes what it finds there."""
        read_environment()
        short = module.__name__.partition(".")[2]
        sys.modules[module.__name__] = importlib.import_module(f"steinkern.{MODULES[short]}")


def keep_old_paths() -> None:
    """Let the old paths and the short ones import.

    Old paths are entered where imports look first, so no attribute of the package changes.
    """
    for old, new in MOVED.items():
        sys.modules.setdefault(f"steinkern.{old}", _Moved(f"steinkern.{old}", f"steinkern.{new}"))
    if not any(isinstance(finder, _PublicModules) for finder in sys.meta_path):
        finder: Any = _PublicModules()
        sys.meta_path.append(finder)  # last: it is asked for what is no file


_environment_is_read = False


def read_environment() -> None:
    """Switch on the compilation cache where the variable STEINKERN_CACHE says so, once. It imports JAX."""
    global _environment_is_read
    if not _environment_is_read:
        _environment_is_read = True
        from .core.compilation_cache import switch_on_by_environment

        switch_on_by_environment()
