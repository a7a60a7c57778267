"""Neighbours: models written for NumPyro and PyMC as targets, results as ArviZ data; one file a neighbour.

The files load on first use (`steinkern.interop.numpyro`), so that `import steinkern` needs none of these libraries.
"""

from importlib import import_module
from types import ModuleType

_NEIGHBOURS = ("arviz", "blackjax", "numpyro", "pymc")


def __getattr__(name: str) -> ModuleType:
    if name in _NEIGHBOURS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its neighbours are {', '.join(_NEIGHBOURS)}")
