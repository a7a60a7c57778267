"""Scalar and matrix-valued kernels, their bandwidths, the sums over pairs, and the diagnostics built on them.

Kernels do not call the target: its scores are passed to them as data.
"""

import typing as _typing

from .._exports import import_submodules as _import_submodules

if not _typing.TYPE_CHECKING:  # a type checker would take every name for a module
    __getattr__ = _import_submodules(__name__)
