"""Detects mass that chains from the nearest Gaussian do not reach: a much wider or narrower component.

A mixture of a narrow and a wide component around one center has one mode, but two Gaussians that are local optima of
the evidence lower bound. Chains in one component do not find the other: in d dimensions a component that is k times
narrower has a fraction k⁻ᵈ of the other's volume. The evidence lower bound of a Gaussian is close to the logarithm of
the mass that it covers. Over Gaussians of one mean and one shape, as a function of their scale, the bound has one
maximum for one component, and a second maximum of similar height where there is another.
"""

from typing import NamedTuple

import numpy as np

from .evaluation import Evaluator
from .gaussian import Gaussian, nearest_gaussian

SCALES = 2.0 ** (np.arange(-16, 17) / 2)
"""The factors on the standard deviations at which the bound is evaluated."""
_GROUP_ENDS = (12, 19, 22, 25)  # scales are evaluated in groups that end before these, narrow ones first
_MIN_VALLEY = 1.0  # the least depth between two maxima, in nats
_MAX_DIFFERENCE = 10.0  # a second maximum lower by more nats than this, plus a tenth of the dimension, is ignored
_MIN_SHARE = 0.01  # the least share of the mass that is reported
_MIN_VISITED_SHARE = 0.2  # the share of the expected draws in a component at which chains have visited it
_MAX_ROUNDS = 20  # of the search for a second Gaussian


class SecondComponent(NamedTuple):
    """A second Gaussian that is a local optimum of the evidence lower bound, and the first."""

    first: Gaussian
    second: Gaussian
    ratio: float
    """The geometric mean of the second's standard deviations over those of the first."""
    share: float
    """The second's share of the mass of both, by their evidence lower bounds."""

    def warning(self, draws: np.ndarray) -> str:
        """The warning; empty where the draws, (transition, chain, coordinate), visited the second Gaussian."""
        points = draws.reshape(-1, draws.shape[-1])
        first, second = (_log_mass(gaussian, points) for gaussian in (self.first, self.second))
        if np.mean(second > first) > _MIN_VISITED_SHARE * self.share:
            return ""
        size = f"{self.ratio:.0f} times wider" if self.ratio > 1 else f"{1 / self.ratio:.0f} times narrower"
        return (
            f"a second component may be missing: another part of the mass, {size}, has perhaps {self.share:.0%} of it, "
            "and chains do not move between the two: run `sample` from a start in each, and check whether both belong "
            "to the model."
        )


def find_second_component(evaluator: Evaluator, nearest: Gaussian) -> SecondComponent | None:
    """Search for a second Gaussian around the mean of the nearest one, then around the point of highest density.

    The second search is needed because a narrow component need not be centered at the mean. A Gaussian with too little
    mass, or of about the width of the first, does not count.
    """
    center, max_difference = nearest.mean, _MAX_DIFFERENCE + 0.1 * len(nearest.mean)
    for _ in range(2):
        bounds, mode = _bounds_around(evaluator, nearest, center, max_difference)
        scale = second_scale(bounds, max_difference)
        if scale is not None:
            second, _ = nearest_gaussian(evaluator, center, [nearest.precision / scale**2], _MAX_ROUNDS)
            log_volume = (nearest.whitening.log_determinant() - second.whitening.log_determinant()) / 2
            ratio = float(np.exp(log_volume / len(center)))
            share = float(1 / (1 + np.exp(-np.clip(second.bound - nearest.bound, -50, 50))))
            if second.settled and share >= _MIN_SHARE and not 0.5 < ratio < 2:
                return SecondComponent(nearest, second, ratio, share)
        center = mode
    return None


def _bounds_around(
    evaluator: Evaluator, nearest: Gaussian, center: np.ndarray, max_difference: float
) -> tuple[np.ndarray, np.ndarray]:
    """The evidence lower bounds of Gaussians at `center` for `SCALES`, and the evaluated point of highest density.

    A component R times wider whose bound is b makes that at a scale k < R at least b − d log(R/k). Where the bound is
    too low for every R, wider clouds are left out, and −∞ is in their place: far from the mass a density may be very
    slow to evaluate, as one with a stiff differential equation.
    """
    d, whitening, bounds = len(center), nearest.whitening, np.full(len(SCALES), -np.inf)
    mode, highest = center, -np.inf
    for group in np.split(np.arange(len(SCALES)), _GROUP_ENDS):
        factors = SCALES[group]
        points = (center + factors[:, None, None] * whitening.unwhiten(evaluator.noise)).reshape(-1, d)
        values = evaluator.log_densities(points)
        values = np.where(np.isfinite(values), values, -np.inf)
        means = values.reshape(len(factors), -1).mean(axis=1)
        bounds[group] = means - whitening.log_determinant() / 2 + d * np.log(factors)
        if values.max() > highest:
            mode, highest = points[values.argmax()], values.max()
        if factors[-1] > 1 and bounds[group[-1]] < bounds.max() - max_difference - d * np.log(SCALES[-1] / factors[-1]):
            break
    return bounds, mode


def second_scale(bounds: np.ndarray, max_difference: float) -> float | None:
    """The scale of the second highest maximum of the bounds, unless it is lower by more than `near` nats."""
    first, padded = len(bounds) // 2, np.append(bounds, -np.inf)  # −∞ is at both ends: it has the index −1 too
    while uphill := int(np.argmax(padded[[first, first - 1, first + 1]])):
        first += (0, -1, 1)[uphill]
    valleys = [np.min(bounds[min(first, index) : max(first, index) + 1]) for index in range(len(bounds))]
    heights = np.where(np.isfinite(bounds) & (valleys < bounds - _MIN_VALLEY), bounds, -np.inf)
    second = int(np.argmax(heights))
    is_high = np.isfinite(heights[second]) and heights[second] >= bounds[first] - max_difference
    return float(SCALES[second]) if is_high else None


def _log_mass(gaussian: Gaussian, points: np.ndarray) -> np.ndarray:
    """The log of the Gaussian's density times its mass, up to a constant that all Gaussians share."""
    whitening = gaussian.whitening
    white = whitening.whiten(points - gaussian.mean)
    return gaussian.bound + whitening.log_determinant() / 2 - np.sum(white**2, axis=1) / 2
