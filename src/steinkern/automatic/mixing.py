"""Have the chains settled? Errors by chain, which need no theory of how a chain forgets: chains are independent."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Vector

ENOUGH = 0.03
"""Standard errors of means and standard deviations, in standard deviations, at which sampling stops."""
_DRIFT = 0.1  # standard deviations between the first half and the second
_SURE = 4.0  # standard errors


class Mixing(NamedTuple):
    """By coordinate, in standard deviations of the draws."""

    mean_error: Vector
    """The standard error of the mean, from the spread of the chains' own means."""
    sd_error: Vector
    """The standard error of the standard deviation, likewise."""
    drift: Vector
    """How far the second half of the draws lies from the first, in the mean or the standard deviation; 0 where that
    may be chance."""
    r_hat: Vector
    """Gelman and Rubin's: the spread of all draws over that within chains, 1 where chains cannot be told apart."""


@eqx.filter_jit
def mixing(points: Float[Array, "t n d"]) -> Mixing:
    """See `Mixing`."""
    t, n, _ = points.shape
    mean = jnp.mean(points, axis=(0, 1), keepdims=True)
    variance = jnp.mean((points - mean) ** 2, axis=(0, 1))
    scale = jnp.sqrt(jnp.where(variance > 0, variance, 1))[None, None]
    unit = (points - mean) / scale
    squares = unit**2 / 2  # half the variance: its error is that of the standard deviation

    def error(values: Array) -> Array:
        return jnp.std(jnp.mean(values, axis=0), axis=0, ddof=1) / n**0.5

    def drift(values: Array) -> Array:
        apart = jnp.mean(values[t // 2 :], axis=0) - jnp.mean(values[: t // 2], axis=0)
        size, chance = jnp.abs(jnp.mean(apart, axis=0)), jnp.std(apart, axis=0, ddof=1) / n**0.5
        return jnp.where(size > _SURE * chance, size, 0)

    within = jnp.mean(jnp.var(unit, axis=0, ddof=1), axis=0)
    between = jnp.var(jnp.mean(unit, axis=0), axis=0, ddof=1)
    r_hat = jnp.sqrt((t - 1) / t + between / jnp.where(within > 0, within, 1))
    return Mixing(error(unit), error(squares), jnp.maximum(drift(unit), drift(squares)), r_hat)


def settled(found: Mixing) -> bool:
    """Whether means and standard deviations are known well enough and stand still."""
    worst = max(float(jnp.max(found.mean_error)), float(jnp.max(found.sd_error)))
    return worst <= ENOUGH and not drifting(found)


def drifting(found: Mixing) -> bool:
    """Whether the second half of the draws lies elsewhere than the first."""
    return float(jnp.max(found.drift)) > _DRIFT
