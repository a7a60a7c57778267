"""What tells one run from another: digests of programs and arrays, and versions."""

import hashlib
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from .archive import Arrays, as_plain, pack_leaves
from .multihost import on_host
from .types import PyTree

_NUM_NORMS = 8  # of a digest on a GPU
_RTOL = 1e-3  # float32 sums of many rows, by other algorithms
_PACKAGES = ("steinkern", "jax", "jaxlib", "numpy", "optax", "equinox")


def array_digest(tree: PyTree) -> str:
    """A digest of the arrays of a tree: their paths, types, shapes and bytes."""
    arrays: Arrays = {}
    pack_leaves(tree, arrays, "")
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype.name} {array.shape}".encode())
        total.update(as_plain(array).data)
    return total.hexdigest()[:32]


def program_digest(lowered: Any) -> str:
    """A digest of a lowered program: its text, and the arrays that JAX holds beside the text."""
    text = np.frombuffer(lowered.as_text().encode(), np.uint8)
    return array_digest([text, *lowered._lowering.const_args])


def value_digest(values: Array) -> str | list[float]:
    """A digest of the bits of computed numbers, a row for each particle.

    On other devices than a CPU bits differ between processes, which choose their algorithms by timing them: there it is
    the norms of the first rows, which `differences` compares with a tolerance.
    """
    rows = on_host(values)
    if jax.default_backend() == "cpu":
        return array_digest(rows)
    return np.linalg.norm(rows[:_NUM_NORMS].reshape(min(len(rows), _NUM_NORMS), -1).astype(float), axis=1).tolist()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the entries that differ between two identities."""
    names = dict.fromkeys([*before, *now])
    return tuple(name for name in names if not _agree(before.get(name), now.get(name)))


def _agree(before: Any, now: Any) -> bool:
    lists = isinstance(before, list) and isinstance(now, list) and len(before) == len(now)
    if lists and all(isinstance(number, float) for number in [*before, *now]):
        return np.allclose(before, now, rtol=_RTOL, atol=_RTOL * max(now, default=0.0))
    return bool(before == now)


def environment() -> dict[str, str]:
    """The date and the versions in use, for the settings of a result."""
    return {"date": datetime.now(UTC).date().isoformat(), **versions()}


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of the numerical libraries."""
    return {"python": platform.python_version(), **{package: sys.modules[package].__version__ for package in _PACKAGES}}
