"""Fewer particles than the flow moves: support points of them, with the same means and standard deviations."""

from dataclasses import replace

import jax
import numpy as np

from ...core.types import Batch
from ...results.result import Result
from ..automatic.support_points import nearest_draws, place, with_moments
from ..automatic.whitening import Whitening
from .evaluate import finite_and_particles

FLOW = 100
"""The least number of particles that move. Fewer than the coordinates cannot satisfy Stein's identity, and lose
spread: 20 particles in 100 dimensions end with 0.3 to 0.6 of the standard deviations."""


def thin(random: np.random.Generator, result: Result, whitening: Whitening, number: int, data: Batch) -> Result:
    """A copy of a result with this number of particles, support points of its own; the state of the run stays.

    With more particles than coordinates they have the mean and covariance of the flow's particles, else its means and
    standard deviations. A particle where the density is not finite is moved to the nearest of the flow's.

    Args:
        random: draws the initial support points.
        result: of the run. It is returned as it is where it has no more particles than `number`.
        whitening: a metric in which the particles are about a unit apart.
        number: of particles.
        data: all of them, or a batch on which the density is looked at.
    """
    flow = np.asarray(result.points, np.float64)
    if len(flow) <= number or not np.isfinite(flow).all():
        return result
    dtype = result.points.dtype
    points = reduce(random, flow, whitening, number)
    finite, _ = finite_and_particles(result.target, jax.device_put(points.astype(dtype)), data)
    if not np.asarray(finite).all():
        points = nearest_draws(points, ~np.asarray(finite), flow)
    kept = jax.device_put(points.astype(dtype))
    note = f"Checked at the {len(flow)} particles of the flow, of which these {number} are support points"
    verdict = replace(result.verdict, note="; ".join(filter(None, [result.verdict.note, note])))
    _, particles = finite_and_particles(result.target, kept, data)
    return replace(result, points=kept, particles=particles, verdict=verdict)


def reduce(random: np.random.Generator, flow: np.ndarray, whitening: Whitening, number: int) -> np.ndarray:
    """Support points (number, d) of the flow's particles, mapped to their moments."""
    n, d = flow.shape
    mean, sd = flow.mean(axis=0), flow.std(axis=0)
    sd = np.where(sd > 0, sd, 1)
    white = whitening.whiten(flow - mean)
    placed = place(random, white, number)
    if number - 1 >= 0.9 * d:
        return np.asarray(mean + whitening.unwhiten(with_moments(placed, np.zeros(d), white.T @ white / n)))
    centred = whitening.unwhiten(placed) / sd  # only standard deviations can be matched, and those of the coordinates
    return np.asarray(mean + sd * with_moments(centred, np.zeros(d), np.eye(d)))
