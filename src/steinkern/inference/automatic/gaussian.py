"""From a bad start to the typical set: the Gaussian nearest to the target, by Newton's method on clouds of points.

The nearest Gaussian N(m, P⁻¹) in the sense of Kullback and Leibler satisfies E[∇log p] = 0 and P = E[−∇²log p], with
expectations under itself: a Gaussian cloud moved by SVGD with the kernel 1 + xᵀy comes to rest there. A mode need not
exist or be near any mass (a centred hierarchy is densest where its width is 0); this Gaussian is where the mass is.

The search runs on the host, in NumPy: its arithmetic is small, and compiling it would take longer than all of it.
"""

from typing import NamedTuple

import numpy as np

from .evaluation import CLOUDS, DENSE_DIMENSIONS, Cloud, Evaluator
from .whitening import Whitening, eigh

_MOST_ROUNDS = 100
_ENOUGH = 0.01  # nats a round: the chains do the rest
_UPWARDS = 0.1  # of the present precision: curvature that noise does not turn upwards
_GROWTH = 16.0  # of a variance in one round: what is flat here may not be flat there
_SHRINKS = 20  # first clouds that are tried at once, each a quarter of the one before


class Gaussian(NamedTuple):
    """N(mean, precision⁻¹), and how it was found."""

    mean: np.ndarray
    precision: np.ndarray
    """(d, d), or (d,) for a diagonal one."""
    bound: float
    """The evidence lower bound, up to a constant: log of the target's mass, less the distance to the Gaussian."""
    rounds: int
    settled: bool
    widening: bool
    """Whether directions along which the density curves upwards are widened, instead of what their size asks for."""

    @property
    def whitening(self) -> Whitening:
        """The metric in which it is standard normal."""
        return Whitening.of_precision(self.precision)

    def cloud(self, noise: np.ndarray) -> np.ndarray:
        """The points that standard normal `noise` stands for."""
        return self.mean + self.whitening.unwhiten(np.asarray(noise))


def nearest_gaussian(
    evaluator: Evaluator, start: np.ndarray, precision: np.ndarray | None = None, most_rounds: int = _MOST_ROUNDS
) -> tuple[Gaussian, Cloud]:
    """The Gaussian nearest to the target that is found from `start`, and the target at a cloud of it.

    A round moves mean and precision towards m + P̂⁻¹E[∇log p] and P̂ = |E[−∇²log p]|, absolute values being those of
    eigenvalues relative to the present precision, by the best of 12 lengths for the evidence lower bound. Where that
    ends although the density curves upwards on average, no Gaussian is at rest: it is widened along such directions.
    Where every length leads beyond an edge of the density, it ends as well. The cloud is the one before the last move,
    which is short where the search has settled.

    Args:
        evaluator: of the target. Its noise is always the same, so that every round improves one function.
        start: where the log density is finite, in unconstrained coordinates.
        precision: of the first cloud; by default that of the curvature at the start, or as many times that as it needs
            for the cloud to have a finite log density.
        most_rounds: after which it ends, settled or not.
    """
    with np.errstate(all="ignore"):  # what overflows is not finite, and looked for
        if precision is None:
            first, scales = _first_precision(evaluator, start), 4.0 ** np.arange(_SHRINKS)
        else:
            first, scales = precision, np.ones(1)
        precisions = [scale * first for scale in scales]
        bounds = bounds_of(evaluator, np.broadcast_to(start, (len(scales), len(start))), precisions)
        best = int(np.argmax(bounds))
        now = Gaussian(start, precisions[best], float(bounds[best]), 0, False, False)
        while not now.settled and now.rounds < most_rounds:
            cloud, curvature = evaluator.derivatives(now.cloud(evaluator.noise))
            now = _improve(evaluator, now, cloud, curvature)
    return now, cloud


def _improve(evaluator: Evaluator, now: Gaussian, cloud: Cloud, curvature: np.ndarray) -> Gaussian:
    """The Gaussian after a round."""
    wanted, least = _wanted(now, curvature)
    move = _solve(wanted, _mean_of_finite(cloud.scores))
    shares = 0.5 ** np.arange(CLOUDS)
    means = now.mean + shares[:, None] * move
    precisions = [(1 - share) * now.precision + share * wanted for share in shares]
    bounds = bounds_of(evaluator, means, precisions)
    best = int(np.argmax(bounds))
    highest, gain = float(bounds[best]), float(bounds[best]) - now.bound
    # An edge in every direction: the bound is finite here and nowhere that a step leads.
    ended = gain < _ENOUGH if np.isfinite(highest) else bool(np.isfinite(now.bound))
    upwards = ended and not now.widening and least < -_UPWARDS
    better = gain > 0
    return Gaussian(
        means[best] if better else now.mean,
        precisions[best] if better else now.precision,
        max(highest, now.bound),
        now.rounds + 1,
        ended and not upwards,
        now.widening or upwards,
    )


def bounds_of(evaluator: Evaluator, means: np.ndarray, precisions: list[np.ndarray]) -> np.ndarray:
    """The evidence lower bounds of several Gaussians; −∞ where one is not finite."""
    whitenings = [Whitening.of_precision(precision) for precision in precisions]
    steps = np.stack([whitening.unwhiten(evaluator.noise) for whitening in whitenings])
    points = means[:, None] + steps
    values = evaluator.log_densities(points.reshape(-1, points.shape[-1])).reshape(points.shape[:2])
    bounds = values.mean(axis=1) - np.array([whitening.log_determinant() for whitening in whitenings]) / 2
    return np.where(np.isfinite(bounds), bounds, -np.inf)


def _first_precision(evaluator: Evaluator, start: np.ndarray) -> np.ndarray:
    """|−∇²log p| at the start, with 1 where it says nothing."""
    if len(start) > DENSE_DIMENSIONS:
        return np.ones_like(start)
    _, hessian = evaluator.derivatives(np.broadcast_to(start, evaluator.noise.shape))
    diagonal = np.abs(np.diagonal(hessian))
    scale = np.sqrt(np.where(np.isfinite(diagonal) & (diagonal > 0), diagonal, 1))
    relative = hessian / np.outer(scale, scale)
    if not (np.isfinite(relative).all() and relative.any()):
        relative = np.eye(len(start))
    values, vectors = eigh((relative + relative.T) / 2)
    values = np.maximum(np.abs(values), np.finfo(np.float64).eps ** 0.5)
    return (vectors * values) @ vectors.T * np.outer(scale, scale)


def _mean_of_finite(scores: np.ndarray) -> np.ndarray:
    good = np.isfinite(scores).all(axis=1)
    return scores[good].mean(axis=0) if good.any() else np.zeros(scores.shape[1])


def _solve(precision: np.ndarray, vector: np.ndarray) -> np.ndarray:
    whitening = Whitening.of_precision(precision)
    return whitening.unwhiten(whitening.pull_scores(vector))


def _wanted(now: Gaussian, curvature: np.ndarray) -> tuple[np.ndarray, float]:
    """The curvature made positive, and the least of its eigenvalues relative to the present precision.

    They are made absolute and not too small; where the Gaussian is widening, negative ones are made as small as that.
    """
    least = 1 / _GROWTH

    def positive(values: np.ndarray) -> np.ndarray:
        made = np.maximum(np.abs(values), least)
        return np.where(values < 0, least, made) if now.widening else made

    if now.precision.ndim == 1:
        relative = curvature / now.precision
        return now.precision * positive(relative), float(relative.min())
    whitening = now.whitening
    turned = whitening.inverse_root.T @ curvature @ whitening.inverse_root
    values, vectors = eigh((turned + turned.T) / 2)
    back = whitening.root.T @ vectors
    return (back * positive(values)) @ back.T, float(values[0])
