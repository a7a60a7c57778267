"""The sums as an NVIDIA GPU kernel: tiles of distances stay on the chip, as in fused attention.

Tensor cores multiply 16-bit numbers. A float32 is the sum of two of them, x = x₁ + x₂, to 22 of its 24 binary digits.
So x·y ≈ x₁·y₁ + x₁·y₂ + x₂·y₁: three fast products replace one slow one, and fewer at a lower precision:

| precision  | distances                       | sums of scores                  | relative error |
|------------|---------------------------------|---------------------------------|----------------|
| "float32"  | x₁·y₁ + x₁·y₂ + x₂·y₁           | k₁·v₁ + k₁·v₂ + k₂·v₁           | ≤ 1e-5         |
| "fast"     | x₁·y₁ + x₂·y₁                   | k₁·v₁ + k₁·v₂                   | ≤ 3e-4         |
| "fastest"  | x₁·y₁                           | k₁·v₁                           | ≤ 2e-2         |

Where a product leaves digits out, the squared norms are those of the rounded points. The distances are then exact for
slightly moved points, a point has distance zero from itself, and the errors of the sources average out.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.particles import Scored
from ..scalar import AbstractScalarKernel
from .gpu_tiles import (
    CHUNK,
    Digits,
    Tile,
    columns_per_program,
    coordinates_at_once,
    padded_columns,
    padded_width,
    reason_unavailable,
    tile_for,
)
from .sums import Sums

_MAX_VALUE = 2.0**14
"""The scaled kernel value at distance 0: below it 16-bit numbers keep all digits down to 2⁻¹⁴."""
_POINT_SCALE, _SCORE_SCALE = 2.0**9, 2.0**8
_ROUNDING_RATIO = 4 * 2.0**-23
"""The rounding of a squared distance, relative to the squared norms in the difference."""


class _Halves(NamedTuple):
    """A float32 array as the sum of two 16-bit arrays; `low` is `None` at a lower precision."""

    high: Array
    low: Array | None


def velocity_sums(
    kernel: AbstractScalarKernel,
    at: Float[Array, "m d"],
    source: Scored,
    digits: Digits,
    *,
    tile: Tile | None = None,
    interpret: bool = False,
) -> Sums:
    """The sums of a velocity; see `sums`. All arrays are float32, points centred.

    Args:
        kernel: a kernel whose arrays are scalars, such as the bandwidth.
        at: the rows.
        source: the sources.
        digits: the 16-bit products to compute.
        tile: the tile size; `tile_for(...)` by default.
        interpret: run slowly on any device, for tests.
    """
    m, d = at.shape
    width, profile = padded_width(d), _scaled_profile(kernel, at.dtype)
    tile = tile_for(d, digits, profile.profiles) if tile is None else tile
    if reason_unavailable():
        raise ValueError(f"`backend` 'gpu' is not available: {reason_unavailable()}. Take 'tiled', or 'auto'.")
    if tile is None:
        raise ValueError(f"`backend` 'gpu' has too little shared memory for {d} dimensions. Take 'tiled', or 'auto'.")
    largest = jnp.maximum(jnp.max(jnp.abs(at)), jnp.max(jnp.abs(source.points)))
    scale = jnp.where(largest > 0, _POINT_SCALE / largest, 1)
    x = _halve(_pad(at * scale, tile.rows, width), digits.x)
    y = _halve(_pad(source.points * scale, tile.columns, width), digits.y)
    values, factors = _sources(kernel, source)
    v = [_halve(_pad(value, tile.columns, padded_columns(d + 1)), digits.v) for value in values]
    # −2x·y and both norms, in the unit of `profile`; its start is added to the rows' norms instead of to every pair.
    unit = profile.unit / scale**2
    norms = [unit * jnp.sum(_join(halves) ** 2, axis=1) for halves in (x, y)]
    x_norms, y_norms = (jnp.stack([norm, _ROUNDING_RATIO * norm]) for norm in norms)
    scalars = jnp.stack([-2 * unit, jnp.ones_like(unit), *profile.scalars])
    sums = _call(profile, scalars, x, x_norms + profile.start, y, y_norms, v, digits.k, tile, interpret)[:m]
    return Sums(sums[:, :d] * factors[None, :d], sums[:, d] * factors[d])


class _ScaledProfile(NamedTuple):
    """How the GPU program computes the scaled kernel values from start + unit × r²; at r = 0 they are `_MAX_VALUE`.

    `evaluate(read, r2)` returns them, where `read(i)` is the i-th of the scalars.
    """

    unit: Array
    start: float
    falls: bool
    """Whether the unit is negative, so that the start is the largest value."""
    scalars: list[Array]
    evaluate: Any
    profiles: int
    """1 where only k is evaluated, 2 where k' is too."""


def _scaled_profile(kernel: AbstractScalarKernel, dtype: Any) -> _ScaledProfile:
    value, derivative = kernel.profile(jnp.zeros((), dtype))
    slope = kernel.constant_slope(dtype)
    if slope is not None:  # k' = slope × k, so k is an exponential: one `exp2` instruction, starting at 2¹⁴
        return _ScaledProfile(
            slope / math.log(2), math.log2(_MAX_VALUE), True, [], lambda read, exponent: [jnp.exp2(exponent)], 1
        )
    numbers, rest = eqx.partition(kernel, eqx.is_array)
    leaves, structure = jax.tree.flatten(numbers)
    scalars = [_MAX_VALUE / jnp.abs(value), _MAX_VALUE / jnp.abs(derivative), *[leaf.astype(dtype) for leaf in leaves]]

    def evaluate(read: Any, r2: Array) -> list[Array]:
        numbers = jax.tree.unflatten(structure, [read(2 + i) for i in range(len(leaves))])
        both = eqx.combine(numbers, rest).profile(r2)
        return [read(i) * part for i, part in enumerate(both)]

    return _ScaledProfile(jnp.ones((), dtype), 0.0, False, scalars, evaluate, 2)


def _sources(kernel: AbstractScalarKernel, source: Scored) -> tuple[list[Array], Array]:
    """The matrices to multiply with k, and with k' where it is not a multiple of k; and their scales.

    They have a column for every coordinate and one for the mass. Each column is scaled to the range of 16-bit numbers;
    the returned factors undo that.
    """
    weights = source.weights[:, None]
    slope = kernel.constant_slope(source.points.dtype)
    if slope is not None:
        columns = [
            jnp.concatenate([weights * (source.scores + 2 * slope * source.points), 2 * slope * weights], axis=1)
        ]
    else:
        columns = [
            jnp.concatenate([weights * source.scores, jnp.zeros_like(weights)], axis=1),
            jnp.concatenate([2 * weights * source.points, 2 * weights], axis=1),
        ]
    at_zero = [jnp.abs(number) for number in kernel.profile(jnp.zeros((), source.points.dtype))]
    # k and k' have different scales and enter the same sum, so the matrices are scaled by k(0) and k'(0).
    parts = [value * part for value, part in zip(at_zero, columns, strict=False)]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(part), axis=0) for part in parts]), axis=0)
    factors = jnp.where(largest > 0, largest, 1) / _SCORE_SCALE
    return [part / factors[None] for part in parts], factors / _MAX_VALUE


def _call(
    profile: _ScaledProfile,
    scalars: Array,
    x: _Halves,
    x_norms: Array,
    y: _Halves,
    y_norms: Array,
    v: list[_Halves],
    split_values: bool,
    tile: Tile,
    interpret: bool,
) -> Float[Array, "rows width"]:
    from jax.experimental import pallas as pl  # a slow import that few programs need
    from jax.experimental.pallas import triton

    padded, width = x.high.shape
    columns = v[0].high.shape[1]
    block_width = columns_per_program(columns)
    inputs = (scalars, x, x_norms, y, y_norms, v)

    def whole_spec(array: Array) -> Any:
        return pl.BlockSpec(array.shape, lambda i, j: (0,) * array.ndim)

    specs = (
        whole_spec(scalars),
        jax.tree.map(lambda array: pl.BlockSpec((tile.rows, width), lambda i, j: (i, 0)), x),
        pl.BlockSpec((2, tile.rows), lambda i, j: (0, i)),
        jax.tree.map(whole_spec, y),
        whole_spec(y_norms),
        jax.tree.map(lambda array: pl.BlockSpec((array.shape[0], block_width), lambda i, j: (0, j)), v),
    )
    leaves, structure = jax.tree.flatten(inputs)
    return pl.pallas_call(
        partial(_program, profile, structure, split_values, tile),
        out_shape=jax.ShapeDtypeStruct((padded, columns), jnp.float32),
        grid=(padded // tile.rows, columns // block_width),
        in_specs=jax.tree.leaves(specs, is_leaf=lambda spec: isinstance(spec, pl.BlockSpec)),
        out_specs=pl.BlockSpec((tile.rows, block_width), lambda i, j: (i, j)),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        name="radial_velocity",
    )(*leaves)


def _program(profile: _ScaledProfile, structure: Any, split_values: bool, tile: Tile, *references: Any) -> None:
    """The GPU program: `tile.rows` rows and a block of columns of the result, summed over all sources."""
    from jax.experimental import pallas as pl

    *inputs, out = references
    scalars, x, x_norms, y, y_norms, v = jax.tree.unflatten(structure, inputs)
    factor, one, row_norms, row_rounding = scalars[0], scalars[1], x_norms[0], x_norms[1]
    width = x.high.shape[1]
    chunk, unrolled = min(CHUNK, width), coordinates_at_once(width) == width
    left_low, right_low = x.low is not None, y.low is not None

    def add(step: Array, total: Array) -> Array:
        sources = pl.ds(step * tile.columns, tile.columns)
        nothing = jnp.zeros((tile.rows, tile.columns), jnp.float32)

        def multiply(i: Any, inner: Array) -> Array:
            left, right = (
                _read(part, (rows, pl.ds(i * chunk, chunk))) for part, rows in ((x, slice(None)), (y, sources))
            )
            transposed = _Halves(right.high.T, None if right.low is None else right.low.T)
            # The factor `one` is explained below.
            return (
                _add_product(left, transposed, inner)
                if unrolled
                else inner + one * _add_product(left, transposed, nothing)
            )

        inner = nothing
        if unrolled:
            for i in range(width // chunk):
                inner = multiply(i, inner)
        else:  # unrolled, many chunks take minutes to compile
            inner = jax.lax.fori_loop(0, width // chunk, multiply, inner)
        r2 = factor * inner + (row_norms[:, None] + y_norms[0, sources][None, :])
        if left_low and right_low:  # float32 precision: distances within its rounding are set to zero
            least = row_rounding[:, None] + y_norms[1, sources][None, :]
            r2 = jnp.where(r2 >= least if profile.falls else r2 <= least, profile.start, r2)
        else:
            r2 = jnp.minimum(r2, profile.start) if profile.falls else jnp.maximum(r2, profile.start)
        part = jnp.zeros(total.shape, total.dtype)
        for values, column in zip(profile.evaluate(lambda i: scalars[2 + i], r2), v, strict=True):
            part = _add_product(_split(values, split_values), _read(column, (sources, slice(None))), part)
        # Tensor cores truncate instead of rounding, which adds up over many tiles. Multiplying by `one`, which the
        # compiler cannot know to be 1, keeps the long sum out of them.
        return total + one * part

    zero = jnp.zeros(out.shape, jnp.float32)
    out[...] = jax.lax.fori_loop(0, y.high.shape[0] // tile.columns, add, zero)


def _read(halves: _Halves, where: Any) -> _Halves:
    return _Halves(halves.high[where], None if halves.low is None else halves.low[where])


def _add_product(left: _Halves, right: _Halves, total: Array) -> Array:
    """Total + left × right, the smaller products added first."""
    if right.low is not None:
        total = total + _dot(left.high, right.low)
    if left.low is not None:
        total = total + _dot(left.low, right.high)
    return total + _dot(left.high, right.high)


def _dot(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _split(values: Array, keep_low: bool) -> _Halves:
    """Split on the chip into the first 10 binary digits and the rest, by a bit mask, which no compiler removes."""
    if not keep_low:
        return _Halves(values.astype(jnp.float16), None)
    bits = jax.lax.bitcast_convert_type(values, jnp.int32) & np.int32(-(2**13))
    high = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return _Halves(high.astype(jnp.float16), (values - high).astype(jnp.float16))


def _halve(values: Array, keep_low: bool) -> _Halves:
    # The compiler would remove a cast to 16 bits and back; it keeps `reduce_precision`.
    high = jax.lax.reduce_precision(values, exponent_bits=5, mantissa_bits=10)
    return _Halves(high.astype(jnp.float16), (values - high).astype(jnp.float16) if keep_low else None)


def _join(halves: _Halves) -> Array:
    high = halves.high.astype(jnp.float32)
    return high if halves.low is None else high + halves.low.astype(jnp.float32)


def _pad(array: Float[Array, "n d"], multiple: int, width: int) -> Float[Array, "rows width"]:
    n, d = array.shape
    return jnp.pad(array, ((0, -n % multiple), (0, width - d)))
