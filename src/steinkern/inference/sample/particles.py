"""The third stage: particles with the moments of the chains, their diagnostics, and the history of the chains."""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled_quickly
from ...core.types import Batch, Points, PyTree
from ...results.outcome import Cost, Diagnostics, History
from ...targets.target import BoundTarget
from ..diagnostics import chain_numbers, distance_along_directions, stein_numbers
from ..judge import MAX_CHAIN_ERROR
from .chains import Chains
from .control_variates import Estimates, moments_by_stein
from .support_points import MAX_SUPPORT_POINTS, nearest_draws, represent, with_moments

_MAX_EDGE_SHARE = 3e-3  # of jumps: the share beyond an edge at 4.7 sds; smooth densities overflow less often
_LOW_DENSITY_QUANTILE = 1e-3  # of the draws' densities; a particle of lower density lies off a ridge of the target
_RECORDS, _MAX_RECORDED = 60, 2_000_000  # records of the history, and the most numbers in their particles


class Placement(NamedTuple):
    """Particles, and the target's values and scores there."""

    particles: PyTree
    """The particles in constrained coordinates."""
    points: np.ndarray
    log_densities: np.ndarray
    scores: np.ndarray
    """∇log p at the points."""
    estimates: Estimates
    """The estimated moments, which the particles match."""
    outside: int
    """The number of particles replaced by draws, because the density is not finite at their support points."""
    history: History
    cost: Cost


def place_particles(
    random: np.random.Generator, target: BoundTarget, data: Batch, chains: Chains, num_particles: int
) -> Placement:
    """Support points of half of the chains' draws, moved to the moments of all of them.

    Particles at which the density is not finite, or lower than at 99.9% of the draws, are replaced by the nearest draw.

    Args:
        random: chooses the draws whose support points are computed.
        target: bound to its space.
        data: the full data.
        chains: the chains and their draws.
        num_particles: the number of particles.
    """
    draws, whitening = chains.draws, chains.whitening
    half = draws.points.shape[1] // 2  # of the chains, which is also the number of jumps in a transition
    smooth = bool(draws.outside.mean() <= _MAX_EDGE_SHARE * half)
    estimates = moments_by_stein(draws.points, draws.scores, whitening, smooth)
    candidates = draws.points[:, :half].reshape(-1, draws.points.shape[-1])
    white_candidates = whitening.whiten(candidates - estimates.center)
    white = represent(random, white_candidates, num_particles)
    if num_particles > 1:
        white = with_moments(white, estimates.mean, estimates.covariance)
    rows, clouds = _recorded(chains, num_particles)
    clouds[-1] = estimates.center + whitening.unwhiten(white)
    values, scores, particles = _evaluate_clouds(target, clouds, data)
    outside = ~(np.isfinite(values) & np.isfinite(scores).all(axis=1))
    cost = Cost(gradients=num_particles, sequential=1)
    threshold, replaced = np.quantile(draws.log_densities, _LOW_DENSITY_QUANTILE), outside
    if num_particles <= MAX_SUPPORT_POINTS:  # more particles than these are draws already
        replaced = outside | (values < threshold)
    if replaced.any():
        likely = np.flatnonzero(draws.log_densities[:, :half].ravel() >= threshold)
        clouds[-1, replaced] = candidates[likely[nearest_draws(white[replaced], white_candidates[likely])]]
        (values, scores, particles), cost = _evaluate_clouds(target, clouds, data), cost + cost
    records = jax.tree.map(lambda leaf: leaf[rows], chains.states)
    mean_score = whitening.pull_scores(records.scores.mean(axis=1))
    centered = records.points - records.points.mean(axis=1, keepdims=True)
    ratio = -np.sum(centered * records.scores, axis=(1, 2)) / (centered[0].size - centered.shape[-1])
    history = History(
        (rows + 1) * chains.num_transitions // len(chains.states.points), np.sqrt(np.mean(mean_score**2, axis=1)),
        chains.step_sizes[rows], ratio, particles if len(clouds) == len(rows) else None,
    )  # fmt: skip
    particles = jax.tree.map(lambda leaf: leaf[-1], particles)
    points = clouds[-1].astype(values.dtype)
    return Placement(particles, points, values, scores, estimates, int(outside.sum()), history, cost)


def _recorded(chains: Chains, num_particles: int) -> tuple[np.ndarray, np.ndarray]:
    """The evenly spaced transitions of the history, and the chains' points there, (record, particle, coordinate).

    A record holds the points of successive transitions where there are more particles than chains. Many particles are
    not recorded: the points are then those of one transition.
    """
    t, n, d = chains.states.points.shape
    rows = np.linspace(0, t - 1, min(_RECORDS, t)).round().astype(int)
    recorded = rows if len(rows) * num_particles * d <= _MAX_RECORDED else rows[-1:]
    successive = np.maximum(recorded[:, None] - np.arange(-(-num_particles // n)), 0)
    return rows, chains.states.points[successive].reshape(len(recorded), -1, d)[:, :num_particles].copy()


def _evaluate_clouds(target: BoundTarget, clouds: np.ndarray, data: Batch) -> tuple[np.ndarray, np.ndarray, PyTree]:
    """Log densities and scores at the last cloud, and all clouds in constrained coordinates."""
    values, scores, particles = jax.tree.map(np.asarray, _evaluate(target, jax.device_put(clouds), data))
    return values, scores, particles


@compiled_quickly
def _evaluate(
    target: BoundTarget, clouds: Float[Array, "k n d"], data: Batch
) -> tuple[Float[Array, " n"], Points, PyTree]:
    values, scores = jax.vmap(jax.value_and_grad(target.log_density), (0, None))(clouds[-1], data)
    return values, scores, jax.vmap(jax.vmap(target.space.constrain))(clouds)


def constrain_points(target: BoundTarget, points: np.ndarray) -> PyTree:
    """Points in constrained coordinates."""
    return jax.tree.map(np.asarray, _constrain(target, jax.device_put(points)))


@compiled_quickly
def _constrain(target: BoundTarget, points: Points) -> PyTree:
    return jax.vmap(target.space.constrain)(points)


def measure_draws(random: np.random.Generator, chains: Chains, placement: Placement) -> Diagnostics:
    """The numbers of the chains, and of the particles that stand for their draws.

    The stated errors combine the standard errors of the estimates with the difference between the estimates and the
    particles' moments, which is not 0 where particles were replaced by draws. For slow chains that have not converged
    the standard errors are twice those of plain means and spreads: on a sharp bend, over 20 keys, errors were 1.5 times
    as large as these.
    """
    draws, whitening, estimates = chains.draws, chains.whitening, placement.estimates
    points, sd = np.asarray(placement.points, np.float64), draws.points.std(axis=(0, 1))
    sd = np.where(sd > 0, sd, 1)
    numbers = Diagnostics(not_checked=("the particles (one particle has no spread)",))
    if len(points) > 1:
        numbers = stein_numbers(points, placement.scores)
    numbers = chain_numbers(numbers, draws.points, draws.scores, draws.acceptance)
    mean_error, sd_error = estimates.mean_error / sd, estimates.variance_error / (2 * sd**2)
    # Narrow regions that slow chains visit rarely make these errors too small.
    chain_errors = (2 if chains.halved_step else 1) * np.maximum(mean_error, numbers.sd_errors)
    if chains.halved_step and numbers.chain_errors.max() > MAX_CHAIN_ERROR / 2:
        mean_error, sd_error = 2 * numbers.mean_errors, 2 * numbers.sd_errors
    mean, steps = estimates.center + whitening.unwhiten(estimates.mean), whitening.steps()
    variance = np.sum(steps * (estimates.covariance @ steps), axis=0)
    mean_error = np.hypot(mean_error, (points.mean(axis=0) - mean) / sd)
    if len(points) > 1:
        sd_error = np.hypot(sd_error, (points.std(axis=0) - np.sqrt(np.maximum(variance, 0))) / sd)
    held_out = draws.points[:, draws.points.shape[1] // 2 :].reshape(-1, points.shape[1])
    white = (whitening.whiten(x - estimates.center) for x in (points, held_out))
    return replace(
        numbers,
        mean_errors=mean_error,
        sd_errors=sd_error,
        chain_errors=chain_errors,
        distance=distance_along_directions(random, *white),
        mean_score=estimates.identity_error,
        outside=placement.outside,
    )
