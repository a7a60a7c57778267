"""Other libraries: NumPyro and PyMC models as targets, BlackJAX's interface, results as ArviZ data.

Each library has a module, which is imported on first use (`steinkern.interop.numpyro`), so that `import steinkern`
needs none of them.
"""

from importlib import import_module
from types import ModuleType

_MODULES = ("arviz", "blackjax", "numpyro", "pymc")


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_MODULES)}")
