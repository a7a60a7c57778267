"""Several reductions of arrays in one pass.

On a CPU every kernel of a program takes XLA 10 to 20 ms to compile, whatever its size, and a plain sum or maximum of
more than 32 numbers is two of them. A reduction of several operands is one, with all that computes its operands.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Kind = Literal["sum", "max", "min"]
_LONGEST = 1024  # numbers that are added one after the other; XLA adds more of them pairwise, which keeps more digits
_ONE_PASS = 4095  # entries up to which a matrix is reduced at once; XLA has quicker sums of its own for more


def reduce_together(kinds: Sequence[Kind], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The sum, maximum or minimum of all entries of each array. NaN stays NaN.

    Args:
        kinds: a kind for each array.
        arrays: of one shape with one or two axes; sums keep their types.
    """
    shape = arrays[0].shape
    floats = {array.dtype for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)}
    if max(shape) > _LONGEST or len(floats) > 1:  # XLA mixes floats with integers, but not with other floats
        return reduce_apart(kinds, arrays)
    if arrays[0].size > _ONE_PASS:
        if set(kinds) == {"sum"}:
            return reduce_apart(kinds, arrays)
        arrays = _reduce(kinds, arrays, (0,))  # along the columns first
    return _reduce(kinds, arrays, tuple(range(arrays[0].ndim)))


def reduce_apart(kinds: Sequence[Kind], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The same by a reduction for each array, more kernels of which each is vectorised: for large or batched arrays."""
    plain = {"sum": lambda array: jnp.sum(array, dtype=array.dtype), "max": jnp.max, "min": jnp.min}
    return tuple(plain[kind](array) for kind, array in zip(kinds, arrays, strict=True))


def mean_of_rows(points: Float[Array, "n d"]) -> Float[Array, "1 d"]:
    """The mean over the first axis, which stays with length 1."""
    if points.shape[0] > _LONGEST:
        return jnp.mean(points, axis=0, keepdims=True)
    return _reduce(("sum", "max"), (points, points), (0,))[0][None, :] / points.shape[0]


def sum_unfused(arrays: Float[Array, "l n d"]) -> Float[Array, "n d"]:
    """The sum over the first axis, which on a CPU is a kernel of its own.

    XLA's library of matrix products takes in plain sums of their operands, and then the products themselves are slow:
    1.2 ms instead of 0.8 for those of a KFAC mixture on a network 64-32-10. It leaves reductions of two operands alone.
    """
    if arrays.shape[0] > _LONGEST or arrays.dtype.itemsize < 4:  # XLA's own sums keep more digits of these
        return jnp.sum(arrays, axis=0)
    return _reduce(("sum", "max"), (arrays, arrays), (0,))[0]


def _reduce(kinds: Sequence[Kind], arrays: Sequence[Array], axes: tuple[int, ...]) -> tuple[Array, ...]:
    own = {"sum": jax.lax.add, "max": jax.lax.max, "min": jax.lax.min}
    firsts = tuple(_first(kind, array) for kind, array in zip(kinds, arrays, strict=True))

    def combine(left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(own[kind](*pair) for kind, *pair in zip(kinds, left, right, strict=True))

    # The barrier keeps XLA from merging this reduction with a next one, and from splitting one with a single operand
    # that is used into two kernels.
    return tuple(jax.lax.optimization_barrier(jax.lax.reduce(tuple(arrays), firsts, combine, axes)))


def _first(kind: Kind, array: Array) -> Array:
    if kind == "sum":
        return jnp.zeros((), array.dtype)
    edge = jnp.iinfo(array.dtype) if jnp.issubdtype(array.dtype, jnp.integer) else None
    largest, smallest = (edge.max, edge.min) if edge else (jnp.inf, -jnp.inf)
    return jnp.array(smallest if kind == "max" else largest, array.dtype)
