"""Rules that compute the bandwidth h, a squared length, from the particles in the metric of the kernel."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..core._xla import reduce_apart, reduce_together
from ..core.reprs import OneLine
from ..core.types import Points, Scalar, as_number, cast_like, check_count, check_positive
from .distance import squared_distances

_MAX_COMPARED_PAIRS = 128
"""The most pairs for which comparing each with all costs less than a search."""
_MAX_CONSTANT_ROWS = 512
"""The most particles for which the mask of the pairs is a constant of the program."""
_MAX_MERGED_PAIRS = 2048
"""The most pairs for which one scalar kernel is faster than three vectorised ones."""
_MAX_SECANT_STEPS = 8
"""Further steps bisect, which is faster where the distances form clusters."""


class AbstractBandwidth(OneLine):
    """A rule that computes a bandwidth from the particles."""

    @abc.abstractmethod
    def __call__(self, points: Points) -> Scalar:
        """The bandwidth for `points`, which are already in the metric of the kernel."""


class Median(AbstractBandwidth):
    """h = factor × the median of r² over the distinct pairs i < j.

    Args:
        factor: 1 / (2 log(n + 1)) by default, the "median trick" of Liu and Wang (2016) in the convention exp(−r²/2h)
            of Eq. (13): a particle's kernel value at itself is then about the sum of its values at all others.
        max_points: the most particles used; of more particles, every n/max_points-th. The median over m exchangeable
            particles has a relative standard error near 1.5/√m in one dimension, 1/√m in two (4 to 5 percent by
            default), and less in more.

    The diagonal (n zeros) does not count. Where the median is zero (more than half the pairs coincide) the mean of r²
    replaces it. Where all particles coincide, 1 replaces it. The bandwidth is therefore always positive.
    """

    factor: Any = eqx.field(default=None, converter=as_number)
    max_points: int = eqx.field(default=500, static=True)

    def __check_init__(self) -> None:
        if self.factor is not None:
            check_positive("factor", self.factor)
        check_count("max_points", self.max_points, least=2)
        if self.max_points > 2**16:
            raise ValueError(
                f"`max_points` must be at most 65,536, so that 32 bits count their pairs, got {self.max_points}."
            )

    def __call__(self, points: Points) -> Scalar:
        n = points.shape[0]
        sample = points if n <= self.max_points else points[self.sampled(n)]
        return self.from_distances(squared_distances(sample, sample), n, alone=True)

    def sampled(self, number: int) -> Int[np.ndarray, " m"]:
        """The indices of the particles used, of `number` in all."""
        used = min(number, self.max_points)
        return np.arange(used) * number // used

    def from_distances(self, r2: Float[Array, "m m"], number: int, *, alone: bool = False) -> Scalar:
        """The bandwidth from the squared distances of the particles used, of `number` particles in all.

        Args:
            r2: the squared distances.
            number: the number of particles.
            alone: whether this is the only bandwidth, not one of a batch. Few distances are then reduced by few XLA
                kernels, which compile faster; a batch is reduced by vectorised ones, which run faster.
        """
        median, total = median_of_pairs(r2, alone=alone)
        mean = total / max(r2.size - r2.shape[0], 1)
        fallback = jnp.where(mean == 0, jnp.ones_like(mean), mean)  # NaN stays NaN
        median = jnp.where((median > 0) & jnp.isfinite(mean), median, fallback)
        factor = 0.5 / np.log(number + 1.0) if self.factor is None else self.factor
        return cast_like(factor, median) * median


def median_of_pairs(r2: Float[Array, "n n"], *, alone: bool = False) -> tuple[Scalar, Scalar]:
    """The exact median of r²_ij over i < j, 0 for a single point; and the sum of all r².

    On a GPU by sorting, because every iteration of a loop synchronises with the host. Elsewhere by counting: XLA's
    sort on a CPU costs 20 to 40 times the rest of a step.
    """
    n = r2.shape[0]
    if n == 1:
        return jnp.zeros((), r2.dtype), jnp.sum(r2)
    if n * (n - 1) // 2 <= _MAX_COMPARED_PAIRS:
        return _median_of_few(r2[np.triu_indices(n, 1)]), jnp.sum(r2)
    counting = partial(median_by_counting, reduce=reduce_together if alone else reduce_apart)
    return jax.lax.platform_dependent(r2, cuda=median_by_sorting, default=counting)


def median_by_sorting(r2: Float[Array, "n n"]) -> tuple[Scalar, Scalar]:
    """The median of at least two pairs by sorting, and the sum of r²."""
    n = r2.shape[0]
    number = n * (n - 1) // 2
    ordered = jnp.sort(_fold(r2).ravel())  # entries without a pair are infinite, and last
    return (ordered[(number - 1) // 2] + ordered[number // 2]) / 2, jnp.sum(r2)


def median_by_counting(
    r2: Float[Array, "n n"], reduce: Callable[..., tuple[Array, ...]] = reduce_apart
) -> tuple[Scalar, Scalar]:
    """The median of at least two pairs by a search for the value below which half of them lie, and the sum of r².

    A secant search on the number of pairs below t, bracketed and bisected on the bits of the floats, takes 5
    to 11 passes for a cloud, up to 40 where clusters are far apart, and 60 in float64 where many distances are equal.
    """
    n = r2.shape[0]
    number = n * (n - 1) // 2
    rank = (number + 1) // 2  # of the lower of the two middle pairs
    pairs = _fold(r2)
    total, squares = reduce(("sum", "sum"), (r2, r2**2))
    mean = total / (n * (n - 1))
    variance = squares / (mean * total) - 1

    # The loop carries one small array instead of seven numbers: for few pairs the number of operations sets the time.
    def unfinished(carry: Array) -> Array:
        low, high, high_count, *_ = carry
        return (high_count != rank) & (_halfway(low, high) > low)

    def narrow(carry: Array) -> Array:
        low, high, high_count, last_count, step, *floats = carry
        last, slope = (_from_bits(bits, r2.dtype) for bits in floats)
        guess = _bits(last + (rank - last_count).astype(last.dtype) * slope)
        safe = (guess > low) & (guess < high) & (step % 4 != 3) & (step < _MAX_SECANT_STEPS)
        middle = jnp.where(safe, guess, _halfway(low, high))
        t = _from_bits(middle, r2.dtype)
        count = _count(pairs <= t, reduce).astype(low.dtype)
        enough = count >= rank
        same_slope = (step == 0) | (count == last_count)
        change = jnp.where(same_slope, 1, count - last_count).astype(last.dtype)
        low, high = jnp.where(enough, low, middle), jnp.where(enough, middle, high)
        high_count = jnp.where(enough, count, high_count)
        slope = jnp.where(same_slope, slope, (t - last) / change)
        return jnp.stack([low, high, high_count, count, step + 1, middle, _bits(slope)])

    # Invariant: count(low) < rank <= count(high). By Markov's inequality half the pairs lie below twice the mean, and
    # none below zero, whose bits are 0. The first guess is the Wilson-Hilferty median of a gamma law of these moments.
    start = mean * jnp.clip(1 - variance / 9, 0.3, 1.0) ** 3
    slope = mean * jnp.sqrt(jnp.maximum(variance, 1e-6)) / (0.4 * number)
    high = _bits(3 * mean)
    counts = np.array([number, rank, 0], high.dtype)
    first = jnp.stack([np.array(-1, high.dtype), high, *counts, _bits(start), _bits(slope)])
    _, high, high_count, *_ = jax.lax.while_loop(unfinished, narrow, first)

    high = _from_bits(high, r2.dtype)
    below, above = jnp.where(pairs <= high, pairs, 0), jnp.where(pairs > high, pairs, jnp.inf)
    lower, upper = reduce(("max", "min"), (below, above))
    if number % 2:
        return lower, total
    return (lower + jnp.where(high_count > rank, lower, upper)) / 2, total


def _median_of_few(values: Float[Array, " m"]) -> Scalar:
    """The median by comparing all values with all: no loop, whose iterations would synchronise GPU and host."""
    number = values.shape[0]
    index = jnp.arange(number)
    is_smaller = values[None, :] < values[:, None]
    is_earlier_tie = (values[None, :] == values[:, None]) & (index[None, :] < index[:, None])
    rank = jnp.sum(is_smaller | is_earlier_tie, axis=1, dtype=jnp.int32)
    middle = (rank == (number - 1) // 2) | (rank == number // 2)
    median = jnp.sum(jnp.where(middle, values, 0)) / (2 - number % 2)
    return jnp.where(jnp.all(jnp.isfinite(values)), median, jnp.nan)


def _fold(r2: Float[Array, "n n"]) -> Float[Array, "half n"]:
    """The pairs i < j: the strict upper triangle folded into a rectangle, lower rows reversed beside the upper ones.

    Entries without a pair are infinite.
    """
    n = r2.shape[0]
    half = (n + 1) // 2
    xp: Any = np if n <= _MAX_CONSTANT_ROWS else jnp  # a constant needs no kernel
    row, column = xp.arange(half)[:, None], xp.arange(n)[None, :]
    folded = jnp.where(column > row, r2[:half], r2[::-1, ::-1][:half])
    unpaired = (column == row) | ((column < row) & (2 * row == n - 1))
    return jnp.where(unpaired, jnp.inf, folded)


def _count(mask: Bool[Array, "half n"], reduce: Callable[..., tuple[Array, ...]]) -> Int[Array, ""]:
    if reduce is reduce_together and mask.size <= _MAX_MERGED_PAIRS:
        return reduce_together(("sum", "max"), 2 * (mask.astype(jnp.int32),))[0]
    # The barrier keeps XLA from merging the sums into one that its CPU backend does not vectorise.
    columns = jax.lax.optimization_barrier(jnp.sum(mask, axis=0, dtype=jnp.int32))
    return jnp.sum(columns)


def _bits(t: Scalar) -> Int[Array, ""]:
    """An integer with the order of non-negative floats; negative for negative floats."""
    integer = jax.lax.bitcast_convert_type(t, jnp.dtype(f"int{8 * t.dtype.itemsize}"))
    return integer.astype(np.promote_types(integer.dtype, np.int32))


def _from_bits(bits: Int[Array, ""], dtype: Any) -> Scalar:
    return jax.lax.bitcast_convert_type(bits.astype(f"int{8 * jnp.dtype(dtype).itemsize}"), dtype)


def _halfway(low: Int[Array, ""], high: Int[Array, ""]) -> Int[Array, ""]:
    return low + (high - low) // 2
