"""The third stage: draws of the chains as particles, their diagnostics, and the history of the chains."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...core.programs import compiled_quickly
from ...core.types import Points, PyTree
from ...results.outcome import ChainRecord, Diagnostics, History
from ...targets.target import BoundTarget
from ..diagnostics import chain_numbers, distance_along_directions, stein_numbers
from .chains import MAX_ERROR, Chains
from .control_variates import Estimates, moments_by_stein
from .thinning import thin

_MAX_EDGE_SHARE = 3e-3  # of jumps: the share beyond an edge at 4.7 sds; smooth densities overflow less often
_MAX_KEPT_DRAWS, _MAX_KEPT_NUMBERS = 100, 10_000_000  # of a chain, and in all; a result and its file stay small
_HEAVY_TAILS = 5.0  # the fourth moment beyond which control variates do not reduce the stated errors of spreads
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
    mean: np.ndarray
    """The estimated means; those of the particles are close to them."""
    sd: np.ndarray
    """The estimated standard deviations, likewise."""
    history: History


def place_particles(random: np.random.Generator, target: BoundTarget, chains: Chains, num_particles: int) -> Placement:
    """Draws of half of the chains that represent those of all of them.

    Args:
        random: chooses among the draws.
        target: bound to its space.
        chains: the chains and their draws.
        num_particles: the number of particles.
    """
    draws, whitening = chains.draws, chains.whitening
    half, d = draws.points.shape[1] // 2, draws.points.shape[2]  # half is also the number of jumps in a transition
    smooth = bool(draws.outside.mean() <= _MAX_EDGE_SHARE * half)
    # The errors of slow chains are stated without the regressions, which take longer than the chains in 100 dimensions.
    estimates = moments_by_stein(draws.points, draws.scores, whitening, smooth and not chains.slow)
    mean, sd = estimates.moments(whitening)
    candidates = draws.points[:, :half].reshape(-1, d)
    whitened = whitening.whiten(candidates - estimates.center)
    chosen = thin(random, whitened, (candidates - mean) / np.where(sd > 0, sd, 1), num_particles)
    scores = draws.scores[:, :half].reshape(-1, d)[chosen]
    rows, clouds = _recorded(chains, num_particles)
    clouds[-1] = candidates[chosen]
    points = clouds.astype(jnp.result_type(float))
    particles = constrain_points(target, points)
    records = jax.tree.map(lambda leaf: leaf[rows], chains.states)
    mean_score = whitening.pull_scores(records.scores.mean(axis=1))
    centered = records.points - records.points.mean(axis=1, keepdims=True)
    ratio = -np.sum(centered * records.scores, axis=(1, 2)) / (centered[0].size - centered.shape[-1])
    history = History(
        (rows + 1) * chains.num_transitions // len(chains.states.points), np.sqrt(np.mean(mean_score**2, axis=1)),
        chains.step_sizes[rows], ratio, particles if len(clouds) == len(rows) else None,
    )  # fmt: skip
    particles = jax.tree.map(lambda leaf: leaf[-1], particles)
    log_densities = draws.log_densities[:, :half].ravel()[chosen].astype(points.dtype)
    return Placement(particles, points[-1], log_densities, scores, estimates, mean, sd, history)


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


def constrain_points(target: BoundTarget, points: np.ndarray) -> PyTree:
    """Points in constrained coordinates; the last axis is that of the coordinates."""
    flat = jax.device_put(points.reshape(-1, points.shape[-1]))
    return jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(*points.shape[:-1], *leaf.shape[1:]), _constrain(target, flat)
    )


@compiled_quickly
def _constrain(target: BoundTarget, points: Points) -> PyTree:
    return jax.vmap(target.space.constrain)(points)


def chain_record(chains: Chains) -> ChainRecord:
    """The draws that a result keeps, in JAX's default precision."""
    draws = chains.draws
    most = min(_MAX_KEPT_DRAWS, max(1, _MAX_KEPT_NUMBERS // draws.points[0].size))
    spacing = -(-len(draws.points) // most)
    arrays = (array[spacing - 1 :: spacing] for array in (draws.points, draws.log_densities, draws.acceptance))
    return ChainRecord(*(np.array(array.swapaxes(0, 1), jnp.result_type(float)) for array in arrays))


def measure_draws(random: np.random.Generator, chains: Chains, placement: Placement) -> Diagnostics:
    """The numbers of the chains, and of the particles that stand for their draws.

    The stated errors combine the standard errors of the estimates with the difference between the estimates and the
    particles' moments. For slow chains that have not converged the standard errors are twice those of plain means and
    spreads: on a sharp bend, over 20 keys, errors were 1.5 times as large as these.
    """
    draws, whitening, estimates = chains.draws, chains.whitening, placement.estimates
    points, sd = np.asarray(placement.points, np.float64), draws.points.std(axis=(0, 1))
    sd = np.where(sd > 0, sd, 1)
    white = whitening.whiten(points - estimates.center)
    numbers = Diagnostics(not_checked=("the particles (one particle has no spread)",))
    if len(points) > 1:
        # In x the spreads of draws are noise where the posterior is narrow in a direction across the coordinates.
        numbers = stein_numbers(white, whitening.pull_scores(placement.scores))
    numbers = chain_numbers(numbers, draws)
    mean_error, sd_error = estimates.mean_error / sd, estimates.variance_error / (2 * sd**2)
    # The spread of heavy tails depends on few draws far out, which a regression hardly sees.
    sd_error = np.where(numbers.fourth_moment > _HEAVY_TAILS, np.maximum(sd_error, numbers.sd_errors), sd_error)
    if chains.slow and numbers.chain_errors.max() > MAX_ERROR / 2:  # narrow regions were visited rarely
        mean_error, sd_error = 2 * numbers.mean_errors, 2 * numbers.sd_errors
    chain_errors = np.maximum(mean_error, sd_error)
    mean_error = np.hypot(mean_error, (points.mean(axis=0) - placement.mean) / sd)
    if len(points) > 1:
        sd_error = np.hypot(sd_error, (points.std(axis=0) - placement.sd) / sd)
    held_out = draws.points[:, draws.points.shape[1] // 2 :].reshape(-1, points.shape[1])
    return replace(
        numbers,
        coordinates=np.zeros(0, int),
        mean_errors=mean_error,
        sd_errors=sd_error,
        chain_errors=chain_errors,
        distance=distance_along_directions(random, white, whitening.whiten(held_out - estimates.center)),
        mean_score=estimates.identity_error,
    )
