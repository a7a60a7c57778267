"""Runs: `fit`, its loop, recovery, checkpoints and checks; and `sample`."""

import typing as _typing

from .._exports import import_submodules as _import_submodules

if not _typing.TYPE_CHECKING:  # a type checker would take every name for a module
    __getattr__ = _import_submodules(__name__)
