"""The tiles of the GPU kernel, the on-chip memory that they take, and the digits of the products."""

import warnings
from functools import cache
from typing import Literal, NamedTuple, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp

from ..scalar import AbstractScalarKernel

Precision: TypeAlias = Literal["float32", "fast", "fastest"]
PRECISIONS = get_args(Precision)

CHUNK = 64
"""The number of coordinates multiplied at a time."""
_SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
"""The shared memory of a program by compute capability, from NVIDIA's programming guide."""
_COMPILER_KIB = 3  # the compiler's part of it
_MAX_DIMENSIONS = 512


class Tile(NamedTuple):
    """The shape of a GPU program: rows and sources of a tile, warps, and pipeline stages (tiles loaded ahead)."""

    rows: int
    columns: int
    warps: int
    stages: int

    def shared_bytes(self, d: int, digits: "Digits", profiles: int) -> int:
        """The shared memory that the compiler allocates: the rows, and the sources of every stage."""
        points, scores = coordinates_at_once(padded_width(d)), columns_per_program(padded_columns(d + 1))
        rows = 2 * self.rows * points * (1 + digits.x)
        return rows + 2 * self.stages * self.columns * (points * (1 + digits.y) + profiles * scores * (1 + digits.v))


@cache
def shared_bytes() -> int:
    """The shared memory available to a program on JAX's GPU, or on an H200 where there is no GPU.

    0 on GPUs older than Ampere, which Triton does not support.
    """
    if jax.default_backend() != "gpu":
        return (_SHARED_KIB[9, 0] - _COMPILER_KIB) * 1024
    major, _, minor = str(getattr(jax.devices()[0], "compute_capability", "0.0")).partition(".")
    known = [version for version in _SHARED_KIB if version <= (int(major), int(minor or 0))]
    return (_SHARED_KIB[max(known)] - _COMPILER_KIB) * 1024 if known else 0


@cache
def reason_unavailable() -> str:
    """The reason why the GPU kernel cannot run here at any size; empty where it can."""
    if not shared_bytes():
        return "the GPU is older than Ampere (compute capability 8.0)"
    try:
        from jax.experimental.pallas import triton  # noqa: F401 (whether it exists)
    except ImportError:
        return "this version of JAX has no Pallas for Triton"
    return ""


def tile_for(d: int, digits: "Digits", profiles: int = 1) -> Tile | None:
    """The fastest tile measured on an H200 (`benchmarks gpu-tiles`), else a smaller one; `None` where none fits.

    Args:
        d: the dimension.
        digits: the 16-bit products to compute.
        profiles: 1 where k' is a multiple of k, else 2.
    """
    if profiles == 2:
        best = Tile(64, 64, 4, 2) if digits.k else Tile(128, 64, 4, 2 if digits.v else 3)
    elif d <= CHUNK // 2:
        best = Tile(128, 64, 4, 2 if digits.k else 3)
    elif d > 2 * CHUNK:
        best = Tile(128, 64, 8, 1)
    elif d <= CHUNK and digits.k:
        best = Tile(128, 64, 4, 2)
    else:
        best = Tile(128, 64, 8, 3 if digits.v and not digits.k else 2)
    others = (Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 1))
    fitting = (tile for tile in (best, *others) if tile.shared_bytes(d, digits, profiles) <= shared_bytes())
    return next(fitting, None)


def fits(kernel: AbstractScalarKernel, d: int, precision: Precision) -> bool:
    """Whether "auto" uses the GPU kernel: at most 512 dimensions, a tile that fits, and only scalars in `kernel`."""
    only_scalars = all(jnp.ndim(leaf) == 0 for leaf in jax.tree.leaves(eqx.filter(kernel, eqx.is_array)))
    if not only_scalars or d > _MAX_DIMENSIONS:
        return False
    profiles = 1 if kernel.constant_slope(jnp.float32) is not None else 2
    reason = reason_unavailable()
    if not reason and tile_for(d, digits_for(kernel, d, precision), profiles) is None:
        reason = (
            f"the GPU has too little shared memory ({shared_bytes() // 1024} KiB) for the GPU kernel in {d} dimensions"
        )
    if reason:
        warnings.warn(
            f"{reason}: velocities of many particles are computed in tiles, which takes several times as long.",
            stacklevel=2,
        )
    return not reason


class Digits(NamedTuple):
    """Which factors of the products keep their second 16-bit half; see the table in `gpu`."""

    x: bool
    y: bool
    k: bool
    v: bool


def digits_for(kernel: AbstractScalarKernel, d: int, precision: Precision) -> Digits:
    """The digits of a precision, from the table in `gpu`; "fast" has more where they are needed or cheap.

    In few dimensions products cost less than the kernel's values. With heavy tails, and in one to three dimensions,
    k and its rounding error are nearly the same for many pairs: the errors do not average out, and "fast" keeps the
    second half of k.
    """
    if precision == "float32":
        return Digits(x=True, y=True, k=True, v=True)
    if precision == "fast":
        heavy = kernel.constant_slope(jnp.float32) is None
        return Digits(x=True, y=d <= CHUNK // 2, k=heavy or d <= 3, v=True)
    return Digits(x=False, y=False, k=False, v=False)


def coordinates_at_once(width: int) -> int:
    """The number of coordinates of the points that are on the chip at a time."""
    return width if width <= 2 * CHUNK else CHUNK


def columns_per_program(columns: int) -> int:
    """The number of columns of the result that one program computes."""
    return min(columns, 4 * CHUNK)


def padded_width(d: int) -> int:
    """The padded dimension: a power of two from 16 up to `CHUNK`, above that a multiple of two chunks."""
    if d <= CHUNK:
        return max(16, 1 << (d - 1).bit_length())
    return -(-d // (2 * CHUNK)) * 2 * CHUNK


def padded_columns(number: int) -> int:
    """The padded number of columns: as `padded_width`, but a multiple of four chunks above two.

    Every program recomputes the distances, so fewer programs with more columns are faster.
    """
    return padded_width(number) if number <= 2 * CHUNK else -(-number // (4 * CHUNK)) * 4 * CHUNK
