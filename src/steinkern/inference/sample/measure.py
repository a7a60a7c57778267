"""The last stage: the numbers by which the particles of `sample` are judged."""

from dataclasses import replace

import numpy as np

from ...results.outcome import Cost, Diagnostics
from ..diagnostics import chain_numbers, distance_along_directions, stein_numbers
from ..judge import MAX_CHAIN_ERROR
from .chains import Chains
from .particles import Placement
from .second_component import has_been_visited
from .start import Start
from .whitening import Whitening


def measure(random: np.random.Generator, start: Start, chains: Chains, placement: Placement) -> Diagnostics:
    """The numbers of the chains, and of the particles that stand for their draws."""
    draws, points = chains.draws, np.asarray(placement.points, np.float64)
    numbers = Diagnostics(not_checked=("the particles (one particle has no spread)",))
    if len(points) > 1:
        numbers = stein_numbers(points, placement.scores)
    numbers = chain_numbers(numbers, draws.points, draws.scores, draws.acceptance)
    mean_errors, sd_errors = _stated_errors(placement, chains, numbers)
    estimated = placement.estimates.mean_error / _standard_deviations(draws.points)
    # Narrow regions that slow chains visit rarely make these errors too small.
    chain_errors = (2 if chains.hard else 1) * np.maximum(estimated, numbers.sd_errors)
    other = start.other
    missed = "" if other is None or has_been_visited(other, draws.points) else other.in_words()
    return replace(
        numbers,
        mean_errors=mean_errors,
        sd_errors=sd_errors,
        chain_errors=chain_errors,
        distance=distance_along_directions(random, placement.white, placement.held_aside),
        mean_score=placement.estimates.identity_error,
        outside=placement.outside,
        missed_component=missed,
        cost=Cost(*map(int, start.spent + chains.spent + placement.spent)),
    )


def _stated_errors(placement: Placement, chains: Chains, numbers: Diagnostics) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the particles' means and standard deviations, in standard deviations.

    They combine the standard errors of the estimates with the difference between the estimates and the particles'
    moments, which is not 0 where particles were replaced by draws. For slow chains that have not converged the
    standard errors are twice those of plain means and spreads: on a sharp bend, over 20 keys, errors were 1.5 times
    as large as these.
    """
    points, estimates = placement.points.astype(np.float64), placement.estimates
    whitening, draws = Whitening.of(chains.sampler.metric), chains.draws.points
    sd = _standard_deviations(draws)
    mean = estimates.centre + whitening.unwhiten(estimates.mean)
    steps = whitening.steps()
    variance = np.sum(steps * (estimates.covariance @ steps), axis=0)
    mean_error, sd_error = estimates.mean_error / sd, estimates.variance_error / (2 * sd**2)
    if chains.hard and numbers.chain_errors.max() > MAX_CHAIN_ERROR / 2:
        mean_error, sd_error = 2 * numbers.mean_errors, 2 * numbers.sd_errors
    mean_error = np.hypot(mean_error, (points.mean(axis=0) - mean) / sd)
    if len(points) > 1:
        sd_error = np.hypot(sd_error, (points.std(axis=0) - np.sqrt(np.maximum(variance, 0))) / sd)
    return mean_error, sd_error


def _standard_deviations(draws: np.ndarray) -> np.ndarray:
    """The standard deviations by coordinate; 1 in place of 0."""
    sd = draws.std(axis=(0, 1))
    return np.asarray(np.where(sd > 0, sd, 1))
