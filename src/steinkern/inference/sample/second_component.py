"""Detects mass that chains from the nearest Gaussian do not reach: a much wider or narrower component.

A mixture of a narrow and a wide component around one centre has one mode, but two Gaussians that are local optima of
the evidence lower bound. Chains in one component do not find the other: in d dimensions a component that is k times
narrower has a fraction k⁻ᵈ of the other's volume. The evidence lower bound of a Gaussian is close to the logarithm of
the mass that it covers. Over Gaussians of one mean and one shape, as a function of their scale, the bound has one
maximum for one component, and a second maximum of similar height where there is another.
"""

from typing import NamedTuple

import numpy as np

from .evaluation import Evaluator
from .gaussian import Gaussian, nearest_gaussian

_HALVINGS = 16  # of the variance, and as many doublings
_LAST_SCALES = (12, 19, 22, 25)  # scales are evaluated in groups that end before these, narrow ones first
_VALLEY = 1.0  # the least depth between two maxima, in nats
_NEAR = 10.0  # a second maximum lower by more nats than this, plus a tenth of the dimension, is ignored
_LEAST_SHARE = 0.01  # the least share of the mass that is reported
_MOST_ROUNDS = 20  # of the search for a second Gaussian


class SecondComponent(NamedTuple):
    """A second Gaussian that is a local optimum of the evidence lower bound, and the first."""

    first: Gaussian
    second: Gaussian
    ratio: float
    """The geometric mean of the second's standard deviations over those of the first."""
    share: float
    """The second's share of the mass of both, by their evidence lower bounds."""

    def in_words(self) -> str:
        """The warning."""
        size = f"{self.ratio:.0f} times wider" if self.ratio > 1 else f"{1 / self.ratio:.0f} times narrower"
        return (
            f"a second component may be missing: another part of the mass, {size}, has perhaps {self.share:.0%} of it, "
            "and chains do not move between the two: run `sample` from a start in each part, and check whether both "
            "belong to the model."
        )


def scales() -> np.ndarray:
    """The factors on the standard deviations at which the bound is evaluated: powers of √2."""
    return 2.0 ** (np.arange(-_HALVINGS, _HALVINGS + 1) / 2)


def find_second_component(evaluator: Evaluator, nearest: Gaussian) -> SecondComponent | None:
    """Search for a second Gaussian around the mean of the nearest one, then around the point of highest density.

    The second search is needed because a narrow component need not be centred at the mean.
    """
    center, near = nearest.mean, _NEAR + 0.1 * len(nearest.mean)
    for _ in range(2):
        bounds, highest = _bounds_around(evaluator, nearest, center, near)
        scale = second_scale(bounds, near)
        if scale is not None:
            second, _ = nearest_gaussian(evaluator, center, nearest.precision / scale**2, _MOST_ROUNDS)
            if (part := _compare(nearest, second)) is not None:
                return part
        center = highest
    return None


def _bounds_around(
    evaluator: Evaluator, nearest: Gaussian, center: np.ndarray, near: float
) -> tuple[np.ndarray, np.ndarray]:
    """The evidence lower bounds of Gaussians at `center` for `scales()`, and the evaluated point of highest density.

    A component R times wider whose bound is b makes that at a scale k < R at least b − d log(R/k). Where the bound is
    too low for every R, wider clouds are left out, and −∞ is in their place: far from the mass a density may be very
    slow to evaluate, as one with a stiff differential equation.
    """
    d, whitening, bounds = len(center), nearest.whitening, np.full(len(scales()), -np.inf)
    highest, top = center, -np.inf
    for part in np.split(np.arange(len(bounds)), _LAST_SCALES):
        factors = scales()[part]
        points = (center + factors[:, None, None] * whitening.unwhiten(evaluator.noise)).reshape(-1, d)
        values = evaluator.log_densities(points)
        with np.errstate(invalid="ignore"):
            means = values.reshape(len(factors), -1).mean(axis=1)
        found = means - whitening.log_determinant() / 2 + d * np.log(factors)
        bounds[part] = np.where(np.isfinite(found), found, -np.inf)
        best = np.argmax(np.where(np.isfinite(values), values, -np.inf))
        if values[best] > top:
            highest, top = points[best], values[best]
        if factors[-1] > 1 and bounds[part[-1]] < bounds.max() - near - d * np.log(scales()[-1] / factors[-1]):
            break
    return bounds, highest


def second_scale(bounds: np.ndarray, near: float) -> float | None:
    """The scale of the second highest maximum of the bounds, unless it is lower by more than `near` nats."""
    first = len(bounds) // 2
    while (higher := max((first, first - 1, first + 1), key=lambda place: _at(bounds, place))) != first:
        first = higher
    others = []
    for place in range(len(bounds)):
        between = bounds[min(first, place) : max(first, place) + 1]
        peak = bounds[place] >= max(_at(bounds, place - 1), _at(bounds, place + 1))
        if peak and np.isfinite(bounds[place]) and np.min(between) < bounds[place] - _VALLEY:
            others.append(place)
    best = max(others, key=lambda place: bounds[place], default=None)
    return None if best is None or bounds[best] < bounds[first] - near else float(scales()[best])


def _at(bounds: np.ndarray, place: int) -> float:
    return float(bounds[place]) if 0 <= place < len(bounds) else -np.inf


def _compare(first: Gaussian, second: Gaussian) -> SecondComponent | None:
    """The second Gaussian; `None` where it has too little mass or the width of the first."""
    d = len(first.mean)
    wider = first.whitening.log_determinant() - second.whitening.log_determinant()
    ratio = float(np.exp(wider / (2 * d)))
    ahead = second.bound - first.bound
    share = 1 / (1 + np.exp(-np.clip(ahead, -50, 50)))
    if not second.settled or share < _LEAST_SHARE or 0.5 < ratio < 2:
        return None
    return SecondComponent(first, second, ratio, float(share))


def has_been_visited(part: SecondComponent, points: np.ndarray) -> bool:
    """Whether at least a fifth of the expected share of the draws, (transition, chain, coordinate), lies in it."""
    draws = points.reshape(-1, points.shape[-1])
    first, second = (_log_mass(gaussian, draws) for gaussian in (part.first, part.second))
    return bool(np.mean(second > first) > 0.2 * part.share)


def _log_mass(gaussian: Gaussian, points: np.ndarray) -> np.ndarray:
    """The log of the Gaussian's density times its mass, up to a constant that all Gaussians share."""
    whitening = gaussian.whitening
    white = whitening.whiten(points - gaussian.mean)
    return gaussian.bound + whitening.log_determinant() / 2 - np.sum(white**2, axis=1) / 2
