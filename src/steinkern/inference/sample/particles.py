"""The third stage: particles with the moments of the chains, and the history of the chains."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled_quickly
from ...core.types import Batch, Points, PyTree
from ...results.outcome import History
from ...targets.target import BoundTarget
from .chains import Chains, Lines
from .control_variates import Estimates, moments_by_stein
from .support_points import MOST_PLACED, nearest_draws, place, with_moments
from .whitening import Whitening

_EDGE = 3e-3  # the share of jumps beyond an edge at 4.7 standard deviations; smooth densities overflow less often
_RARE = 1e-3  # a quantile of the draws' densities; a particle of lower density lies beside a ridge
_RECORDS, _MOST_RECORDED = 60, 2_000_000  # records of the history, and the most numbers in their particles


@dataclass(frozen=True)
class Placement:
    """Particles, and the target's values and scores there."""

    particles: PyTree
    """The particles in constrained coordinates."""
    points: np.ndarray
    log_densities: np.ndarray
    white: np.ndarray
    """The points in whitened coordinates, in which the covariance of the draws is nearly the identity."""
    scores: np.ndarray
    """∇log p at the points."""
    held_aside: np.ndarray
    """Draws that were not used to compute the particles, in whitened coordinates, for the check."""
    estimates: Estimates
    """The estimated moments, which the particles match."""
    outside: int
    """The number of particles replaced by draws, because the density is not finite at their support points."""
    history: History
    spent: np.ndarray
    """The numbers of values, gradients, Hessians and sequential batches."""

    @property
    def finite(self) -> bool:
        """Whether all coordinates of all particles are finite."""
        return all(bool(np.isfinite(leaf).all()) for leaf in (self.points, *jax.tree.leaves(self.particles)))


def is_recorded(num_particles: int, d: int) -> bool:
    """Whether the history keeps the chains' points; many of them would take too much memory."""
    return _RECORDS * num_particles * d <= _MOST_RECORDED


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
    draws, whitening = chains.draws, Whitening.of(chains.sampler.metric)
    d, half = draws.points.shape[-1], draws.points.shape[1] // 2
    estimates = moments_by_stein(draws.points, draws.scores, chains.sampler.metric, draws.jumps_outside <= _EDGE)
    halves = draws.points[:, :half], draws.points[:, half:]
    ours, aside = (whitening.whiten(part.reshape(-1, d) - estimates.centre) for part in halves)
    white = place(random, ours, num_particles)
    if num_particles > 1:
        white = with_moments(white, estimates.mean, estimates.covariance)
    kept, clouds = _recorded_lines(chains.lines, num_particles)

    def examine(white: np.ndarray) -> tuple[np.ndarray, Any]:
        points = jax.device_put(estimates.centre + whitening.unwhiten(white))
        return np.asarray(points), jax.tree.map(np.asarray, _examine(target, points, clouds, data))

    points, seen = examine(white)
    outside = ~(np.isfinite(seen[0]) & np.isfinite(seen[1]).all(axis=1))
    rare, beside, looks = np.quantile(draws.log_densities, _RARE), outside, 1
    if num_particles <= MOST_PLACED:  # more particles than these are draws already
        beside = outside | (seen[0] < rare)
    if beside.any():
        common = draws.log_densities[:, :half].ravel() >= rare
        white = nearest_draws(white, beside, ours[common])
        (points, seen), looks = examine(white), 2
    values, scores, particles, recorded = seen
    if recorded is not None:
        number = len(kept) - 1
        recorded = jax.tree.map(lambda lines, last: np.concatenate([lines[:number], last[None]]), recorded, particles)
    lines = chains.lines
    mean_score, step_size, ratio = (part[kept] for part in (lines.mean_score, lines.step_size, lines.stein_ratio))
    return Placement(
        particles, points, values, white, scores, aside, estimates, int(outside.sum()),
        History(kept + 1, mean_score, step_size, ratio, recorded), np.array([0, looks * num_particles, 0, looks]),
    )  # fmt: skip


def _recorded_lines(lines: Lines, num_particles: int) -> tuple[np.ndarray, Array | None]:
    """The transitions that the history keeps, and the chains' points at each of them but the last.

    Where there are more particles than chains, a record holds the chains at several successive transitions. The number
    of clouds is padded to a constant with copies of the first, so that one compiled program serves all runs.
    """
    last = len(lines.leaps) - 1
    kept = np.arange(last, -1, -max(1, -(-(last + 1) // _RECORDS)))[::-1]
    if not len(lines.points):
        return kept, None
    in_a_row = np.arange(-(-num_particles // lines.points.shape[1]))
    padded = np.concatenate([kept[:-1], np.zeros(_RECORDS - len(kept), int)])
    rows = np.maximum(padded[:, None] - in_a_row, 0)
    return kept, jax.device_put(lines.points[rows].reshape(len(rows), -1, lines.points.shape[-1])[:, :num_particles])


def constrain_points(target: BoundTarget, points: np.ndarray) -> PyTree:
    """These points in constrained coordinates."""
    return jax.tree.map(np.asarray, _constrain(target, jax.device_put(points)))


@compiled_quickly
def _constrain(target: BoundTarget, points: Points) -> PyTree:
    return jax.vmap(target.space.constrain)(points)


@compiled_quickly
def _examine(
    target: BoundTarget, points: Points, clouds: Float[Array, "k n d"] | None, data: Batch
) -> tuple[Float[Array, " n"], Points, PyTree, PyTree]:
    """Log densities and scores at points, the particles there, and those of recorded clouds of points."""
    values, scores = jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, data)
    constrain = jax.vmap(target.space.constrain)
    if clouds is None:
        return values, scores, constrain(points), None
    n, d = points.shape
    particles = constrain(jnp.concatenate([points, clouds.reshape(-1, d)]))
    first = jax.tree.map(lambda leaf: leaf[:n], particles)
    return values, scores, first, jax.tree.map(lambda leaf: leaf[n:].reshape(-1, n, *leaf.shape[1:]), particles)
