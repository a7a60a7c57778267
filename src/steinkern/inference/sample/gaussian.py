"""The Gaussian nearest to the target, from any start, by Newton's method on clouds of points.

The Gaussian N(m, P⁻¹) of least Kullback-Leibler divergence KL(N ‖ p) satisfies E[∇log p] = 0 and P = E[−∇²log p], with
expectations under the Gaussian itself. It is also the fixed point of SVGD with the kernel 1 + xᵀy. Unlike a mode, which
may not exist or may be far from the mass (the density of a centered hierarchy is largest at width 0), it covers mass.

The search runs on the host in NumPy, because compiling it would take longer than running it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .evaluation import CLOUDS, Cloud, Evaluator
from .whitening import Whitening, eigh

_MAX_ROUNDS = 100
_MIN_GAIN = 0.01  # the search ends where a round gains fewer nats than this
_MAX_NEGATIVE = 0.1  # negative curvature beyond this share of the current precision is not noise
_MAX_GROWTH = 16.0  # of a variance in one round, since flat directions may be flat only locally
_MAX_LAST_GAIN = 1.0  # nats in a round: a search that gains less does not diverge, but improves slowly
_MAX_SCALE = 1e50  # relative to 1 and the start: larger than a parameter in any unit
_MAX_SCALE_POWER = 0.4  # of the largest number of the precision, because sums of squares must not overflow
_NUM_SCALES = 20  # initial clouds that are compared, each with a quarter of the variance of the one before


class Gaussian(NamedTuple):
    """N(mean, precision⁻¹), and the state of the search for it."""

    mean: np.ndarray
    precision: np.ndarray
    """(d, d), or (d,) for a diagonal one."""
    bound: float
    """The evidence lower bound up to a constant: the log of the target's mass minus the divergence KL(N ‖ p)."""
    rounds: int
    settled: bool
    widening: bool
    """Whether the variance grows along directions of negative mean curvature, instead of using its absolute value."""
    start: np.ndarray
    """Of the search."""
    gain: float = np.inf
    """Of the bound in the last round."""

    @property
    def size(self) -> np.ndarray:
        """The standard deviation of every coordinate plus the distance of its mean from the start."""
        return np.asarray(np.sqrt(np.sum(self.whitening.steps() ** 2, axis=0)) + np.abs(self.mean - self.start))

    @property
    def failed(self) -> bool:
        """Whether the search was still on its way when it ended."""
        return self.diverged or not (self.settled or self.gain < _MAX_LAST_GAIN)

    @property
    def diverged(self) -> bool:
        """Whether the search has left for infinity."""
        largest = min(_MAX_SCALE, float(jnp.finfo(jnp.result_type(float)).max) ** _MAX_SCALE_POWER)
        return not np.all(self.size < largest * (1 + np.abs(self.start)))  # true for NaN

    @property
    def whitening(self) -> Whitening:
        """The metric in which it is standard normal."""
        return Whitening.of_precision(self.precision)

    def cloud(self, noise: np.ndarray) -> np.ndarray:
        """The points of the Gaussian that correspond to standard normal `noise`."""
        return self.mean + self.whitening.unwhiten(np.asarray(noise))


@np.errstate(all="ignore")  # overflow gives numbers that are not finite, which are checked for
def nearest_gaussian(
    evaluator: Evaluator, start: np.ndarray, precisions: Sequence[np.ndarray], max_rounds: int = _MAX_ROUNDS
) -> tuple[Gaussian, Cloud]:
    """Search for the Gaussian nearest to the target; returns it and the target at a cloud of its points.

    A round moves mean and precision towards m + P̂⁻¹E[∇log p] and P̂ = |E[−∇²log p]|, where |·| takes absolute values of
    the eigenvalues relative to the current precision. Of 12 step lengths the one with the highest evidence lower bound
    is taken. Where this stops at a point of negative mean curvature, no Gaussian is optimal, and the search continues
    with growing variance along such directions. It also stops where every step length leads beyond an edge of the
    density. The returned cloud is that before the last step, which is short if the search has converged.

    Args:
        evaluator: evaluates the target; its noise is fixed, so that every round improves the same function.
        start: a point at which the log density is finite, in unconstrained coordinates.
        precisions: of which the one with the highest evidence lower bound is the initial precision.
        max_rounds: the most rounds.
    """
    return continue_search(evaluator, first_gaussian(evaluator, start, precisions), max_rounds)


@np.errstate(all="ignore")
def first_gaussian(evaluator: Evaluator, start: np.ndarray, precisions: Sequence[np.ndarray]) -> Gaussian:
    """The Gaussian at the start whose precision has the highest evidence lower bound."""
    bounds = bounds_of(evaluator, np.resize(start, (len(precisions), len(start))), precisions)
    best = int(np.argmax(bounds))
    return Gaussian(start, precisions[best], float(bounds[best]), 0, False, False, start)


@np.errstate(all="ignore")
def continue_search(evaluator: Evaluator, current: Gaussian, max_rounds: int = _MAX_ROUNDS) -> tuple[Gaussian, Cloud]:
    """Take rounds, at least one, until the search settles, diverges, or has taken `max_rounds` of them in all."""
    while True:
        cloud, curvature = evaluator.derivatives(current.cloud(evaluator.noise))
        current = _improve(evaluator, current, cloud, curvature)
        if current.settled or current.rounds >= max_rounds or current.diverged:
            return current, cloud


def _improve(evaluator: Evaluator, current: Gaussian, cloud: Cloud, curvature: np.ndarray) -> Gaussian:
    """The Gaussian after one round of the search."""
    proposed, least = _proposed_precision(current, curvature)
    whitening, finite = Whitening.of_precision(proposed), np.isfinite(cloud.scores).all(axis=1)
    mean_score = cloud.scores[finite].mean(axis=0) if finite.any() else np.zeros(len(current.mean))
    move = whitening.unwhiten(whitening.pull_scores(mean_score))
    shares = 0.5 ** np.arange(CLOUDS)
    means = current.mean + shares[:, None] * move
    precisions = [(1 - share) * current.precision + share * proposed for share in shares]
    bounds = bounds_of(evaluator, means, precisions)
    best = int(np.argmax(bounds))
    highest, gain = float(bounds[best]), float(bounds[best]) - current.bound
    # There are edges in all directions where the bound is finite here, but at none of the step lengths.
    stalled = gain < _MIN_GAIN if np.isfinite(highest) else bool(np.isfinite(current.bound))
    starts_widening = stalled and not current.widening and least < -_MAX_NEGATIVE
    better = gain > 0
    return current._replace(
        mean=means[best] if better else current.mean,
        precision=precisions[best] if better else current.precision,
        bound=max(highest, current.bound),
        rounds=current.rounds + 1,
        settled=stalled and not starts_widening,
        widening=current.widening or starts_widening,
        gain=gain,
    )


def bounds_of(evaluator: Evaluator, means: np.ndarray, precisions: Sequence[np.ndarray]) -> np.ndarray:
    """The evidence lower bounds of several Gaussians; −∞ in place of those that are not finite."""
    whitenings = [Whitening.of_precision(precision) for precision in precisions]
    steps = np.stack([whitening.unwhiten(evaluator.noise) for whitening in whitenings])
    points = means[:, None] + steps
    values = evaluator.log_densities(points.reshape(-1, points.shape[-1])).reshape(points.shape[:2])
    bounds = values.mean(axis=1) - np.array([whitening.log_determinant() for whitening in whitenings]) / 2
    return np.where(np.isfinite(bounds), bounds, -np.inf)


@np.errstate(all="ignore")
def first_precisions(curvature: np.ndarray) -> list[np.ndarray]:
    """The absolute curvature at a point, 1 along coordinates where it is zero or not finite, times powers of 4.

    A diagonal, of more than `DENSE_DIMENSIONS`, is 1.
    """
    factors = 4.0 ** np.arange(_NUM_SCALES)
    if curvature.ndim == 1:
        return [factor * np.ones_like(curvature) for factor in factors]
    diagonal = np.abs(np.diagonal(curvature))
    scale = np.sqrt(np.where(np.isfinite(diagonal) & (diagonal > 0), diagonal, 1))
    relative = curvature / np.outer(scale, scale)
    if not (np.isfinite(relative).all() and relative.any()):
        relative = np.eye(len(curvature))
    values, vectors = eigh((relative + relative.T) / 2)
    values = np.maximum(np.abs(values), np.finfo(np.float64).eps ** 0.5)
    precision = (vectors * values) @ vectors.T * np.outer(scale, scale)
    return [factor * precision for factor in factors]


def _proposed_precision(current: Gaussian, curvature: np.ndarray) -> tuple[np.ndarray, float]:
    """The curvature made positive definite, and its least eigenvalue relative to the current precision.

    Eigenvalues become their absolute values, and at least 1/16; while widening, negative eigenvalues become 1/16.
    """
    least = 1 / _MAX_GROWTH

    def positive(values: np.ndarray) -> np.ndarray:
        magnitude = np.maximum(np.abs(values), least)
        return np.where(values < 0, least, magnitude) if current.widening else magnitude

    if current.precision.ndim == 1:
        relative = curvature / current.precision
        return current.precision * positive(relative), float(relative.min())
    whitening = current.whitening
    white = whitening.inverse_root.T @ curvature @ whitening.inverse_root
    values, vectors = eigh((white + white.T) / 2)
    back = whitening.root.T @ vectors
    return (back * positive(values)) @ back.T, float(values[0])
