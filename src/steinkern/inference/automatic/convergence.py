"""Convergence of the chains: Monte Carlo standard errors, drift and R-hat.

The standard errors come from the spread of the chains' means, so they need no estimate of autocorrelation. The formula
is that of independent chains. Jumps couple the chains, since each adds the difference of two others, but each jump uses
one of thousands of pairs; over the targets of `tests/calibration.py` the stated errors are right.
"""

from typing import NamedTuple

import numpy as np

ENOUGH = 0.03
"""Standard errors of means and standard deviations, in standard deviations, at which sampling stops."""
_DRIFT = 0.1  # standard deviations between the halves of the draws
_SURE = 4.0  # standard errors


class Mixing(NamedTuple):
    """Convergence diagnostics by coordinate, in standard deviations of the draws."""

    mean_error: np.ndarray
    """The standard error of the mean, from the spread of the chains' means."""
    sd_error: np.ndarray
    """The standard error of the standard deviation, from the spread of the chains' variances."""
    drift: np.ndarray
    """The change of the mean or the standard deviation from the first half of the draws to the second; 0 where it is
    not significant."""
    r_hat: np.ndarray
    """R-hat of Gelman and Rubin: the spread of all draws over that within chains, near 1 after convergence."""


def measure_mixing(points: np.ndarray) -> Mixing:
    """The diagnostics of draws with axes (transition, chain, coordinate)."""
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


def largest_settled_error(hard: bool) -> float:
    """The largest standard error of converged means and spreads, in standard deviations.

    It is halved where the chains needed many rounds: rarely visited narrow regions make the stated errors too small.
    """
    return ENOUGH / 2 if hard else ENOUGH


def have_settled(found: Mixing) -> bool:
    """Whether the standard errors of means and standard deviations are small and nothing drifts."""
    worst = float(max(found.mean_error.max(), found.sd_error.max()))
    return worst <= ENOUGH and not are_drifting(found)


def are_drifting(found: Mixing) -> bool:
    """Whether the mean or spread of some coordinate differs between the halves of the draws."""
    return bool(found.drift.max() > _DRIFT)
