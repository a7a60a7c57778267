"""Have the chains settled? Errors from the spread of the chains' own means, without a theory of how a chain forgets.

They are those of independent chains. Jumps couple the chains, since each adds a difference of two others, but one jump
goes by one pair among thousands: over the targets of `tests/calibration.py` errors are as stated.
"""

from typing import NamedTuple

import numpy as np

ENOUGH = 0.03
"""Standard errors of means and standard deviations, in standard deviations, at which sampling stops."""
_DRIFT = 0.1  # standard deviations between the first half and the second
_SURE = 4.0  # standard errors


class Mixing(NamedTuple):
    """By coordinate, in standard deviations of the draws."""

    mean_error: np.ndarray
    """The standard error of the mean, from the spread of the chains' own means."""
    sd_error: np.ndarray
    """The standard error of the standard deviation, likewise."""
    drift: np.ndarray
    """How far the second half of the draws lies from the first, in the mean or the standard deviation; 0 where that
    may be chance."""
    r_hat: np.ndarray
    """Gelman and Rubin's: the spread of all draws over that within chains, 1 where chains cannot be told apart."""


def mixing(points: np.ndarray) -> Mixing:
    """See `Mixing`; the axes are (transition, chain, coordinate)."""
    t, n, _ = points.shape
    mean = points.mean(axis=(0, 1))
    variance = ((points - mean) ** 2).mean(axis=(0, 1))
    unit = (points - mean) / np.sqrt(np.where(variance > 0, variance, 1))
    squares = unit**2 / 2  # half the variance: its error is that of the standard deviation

    def error(values: np.ndarray) -> np.ndarray:
        return np.asarray(values.mean(axis=0).std(axis=0, ddof=1) / n**0.5)

    def drift(values: np.ndarray) -> np.ndarray:
        apart = values[t // 2 :].mean(axis=0) - values[: t // 2].mean(axis=0)
        size, chance = np.abs(apart.mean(axis=0)), apart.std(axis=0, ddof=1) / n**0.5
        return np.where(size > _SURE * chance, size, 0)

    within = unit.var(axis=0, ddof=1).mean(axis=0)
    between = unit.mean(axis=0).var(axis=0, ddof=1)
    r_hat = np.sqrt((t - 1) / t + between / np.where(within > 0, within, 1))
    return Mixing(error(unit), error(squares), np.maximum(drift(unit), drift(squares)), r_hat)


def settled_error(hard: bool) -> float:
    """The standard errors up to which means and spreads are called settled, in standard deviations.

    Half as large where the chains had a hard time: narrow places that they see too little make errors look small.
    """
    return ENOUGH / 2 if hard else ENOUGH


def settled(found: Mixing) -> bool:
    """Whether means and standard deviations are known well enough and stand still."""
    worst = float(max(found.mean_error.max(), found.sd_error.max()))
    return worst <= ENOUGH and not drifting(found)


def drifting(found: Mixing) -> bool:
    """Whether the second half of the draws lies elsewhere than the first."""
    return bool(found.drift.max() > _DRIFT)
