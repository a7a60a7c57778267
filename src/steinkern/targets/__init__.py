"""Targets: log densities, supports, likelihoods, curvature, models and initial particles.

They do not depend on kernels.
"""

import typing as _typing

from .._exports import import_submodules as _import_submodules

if not _typing.TYPE_CHECKING:  # a type checker would take every name for a module
    __getattr__ = _import_submodules(__name__)
