"""Rules for the bandwidth h, a squared length, from the particles in the metric of the kernel."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._types import Points, Scalar, as_number, check_count, check_positive, like
from .distance import squared_distances


class AbstractBandwidth(eqx.Module):
    """A rule that reads a bandwidth off the particles."""

    @abc.abstractmethod
    def __call__(self, points: Points) -> Scalar:
        """The bandwidth for `points`, which are already in the metric of the kernel."""


class Median(AbstractBandwidth):
    """h = factor × the median of r² over the distinct pairs i < j.

    Args:
        factor: the one constant. By default 1 / (2 log(n + 1)), the "median trick" of Liu and Wang (2016) in the
            convention exp(−r²/2h) of Eq. (13): a particle then weighs itself about as much as all the others together.
        largest: above this number of particles every ⌈n / largest⌉-th one is used. The median over m exchangeable
            particles has a relative standard error near 1/√m, so 4 to 5 percent by default, less in many dimensions.

    The diagonal (n zeros) does not count. Where the median is zero (more than half the pairs coincide) the mean of
    r² takes its place, and 1 where all particles coincide, so that the bandwidth is always positive.
    """

    factor: Any = eqx.field(default=None, converter=as_number)
    largest: int = eqx.field(default=500, static=True)

    def __check_init__(self) -> None:
        if isinstance(self.factor, np.ndarray):
            check_positive("factor", self.factor)
        check_count("largest", self.largest, least=2)

    def __call__(self, points: Points) -> Scalar:
        n = points.shape[0]
        sample = points[:: -(-n // self.largest)]
        r2 = squared_distances(sample, sample)
        typical = median_of_pairs(r2)
        mean = jnp.sum(r2) / max(r2.size - r2.shape[0], 1)
        typical = jnp.where(typical > 0, typical, jnp.where(mean > 0, mean, jnp.ones_like(mean)))
        factor = 0.5 / np.log(n + 1.0) if self.factor is None else self.factor
        return like(factor, typical) * typical


def median_of_pairs(r2: Float[Array, "n n"]) -> Scalar:
    """The exact median of r²_ij over i < j; 0 for a single point.

    Selects by counting instead of sorting: XLA's CPU sort costs 20 to 40 times the rest of a step. A secant search on
    the number of pairs below t, bracketed and bisected on the bits of the floats, ends after a handful of passes.
    """
    n = r2.shape[0]
    if n == 1:
        return jnp.zeros((), r2.dtype)
    number = n * (n - 1) // 2
    rank = (number + 1) // 2  # of the lower middle
    pairs = _fold(r2)
    mean = jnp.sum(r2) / (n * (n - 1))
    spread = jnp.sqrt(jnp.sum((r2 / mean - 1) ** 2) / (n * (n - 1)))

    def count(t: Array) -> Array:
        return jnp.sum(jnp.sum(pairs <= t, axis=0, dtype=jnp.int32))

    def unfinished(carry: tuple[Array, ...]) -> Array:
        low, high, high_count, *_ = carry
        return (high_count != rank) & (_midpoint(low, high) > low)

    def narrow(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, high_count, last, last_count, slope, turn = carry
        guess = last + (rank - last_count).astype(last.dtype) * slope
        safe = (guess > low) & (guess < high) & (turn % 3 != 2)
        t = jnp.where(safe, guess, _midpoint(low, high))
        found = count(t)
        enough = found >= rank
        moved = (found - last_count).astype(last.dtype)
        slope = jnp.where(moved == 0, slope, (t - last) / jnp.where(moved == 0, 1, moved))
        return (
            jnp.where(enough, low, t),
            jnp.where(enough, t, high),
            jnp.where(enough, found, high_count),
            t,
            found,
            slope,
            turn + 1,
        )

    # Invariant: count(low) < rank <= count(high). By Markov's inequality half the pairs lie below twice the mean.
    zeros = count(jnp.zeros_like(mean))
    high = jnp.where(zeros >= rank, jnp.zeros_like(mean), 3 * mean)
    high_count = jnp.where(zeros >= rank, rank, number)
    # The Wilson-Hilferty median of a gamma law with the same moments starts the search close by.
    start = mean * jnp.clip(1 - spread**2 / 9, 0.3, 1.0) ** 3
    slope = mean * jnp.maximum(spread, 1e-3) / (0.4 * number)
    turn = jnp.zeros((), jnp.int32)
    state: tuple[Array, ...] = (jnp.zeros_like(mean), high, high_count, start, count(start), slope, turn)
    _, high, high_count, *_ = jax.lax.while_loop(unfinished, narrow, state)

    lower = jnp.max(jnp.where(pairs <= high, pairs, 0))
    if number % 2:
        return lower
    upper = jnp.min(jnp.where(pairs > high, pairs, jnp.inf))
    return (lower + jnp.where(count(lower) > rank, lower, upper)) / 2


def _fold(r2: Float[Array, "n n"]) -> Float[Array, "half n"]:
    """The pairs i < j alone: the strict upper triangle as a rectangle, its second half turned to lie beside the first.

    The entries that stand for no pair are infinite.
    """
    n = r2.shape[0]
    half = (n + 1) // 2
    row, column = jnp.arange(half)[:, None], jnp.arange(n)[None, :]
    folded = jnp.where(column > row, r2[:half], r2[::-1, ::-1][:half])
    surplus = (column == row) | ((column < row) & (2 * row == n - 1))
    return jnp.where(surplus, jnp.inf, folded)


def _midpoint(low: Scalar, high: Scalar) -> Scalar:
    """The float half way between two non-negative floats in their ordering, so that every bisection ends."""
    integer = jnp.dtype(f"int{8 * low.dtype.itemsize}")
    a, b = (jax.lax.bitcast_convert_type(t, integer) for t in (low, high))
    return jax.lax.bitcast_convert_type(a + (b - a) // 2, low.dtype)
