"""Stein's identity against Monte Carlo noise: zero-variance control variates (Assaraf and Caffarel; Mira et al., 2013).

E[s] = 0 and E[(x_i − m) s_k] = −δ_ik at the target, so what a sample's own means of them are is noise, and moves with
the noise in the mean and covariance of x. Regressing the one on the other takes it out: all of it for a Gaussian. Both
hold where the density is differentiable and vanishes at the edges of its support. Where chains have met an edge, or a
mean of s is farther from 0 than its own noise allows, nothing is corrected, and the stated errors are those of plain
means. Where that is so of a product (x_i − m) s_k alone, as with chains that have not settled, the correction is taken,
and the stated error is no less than it and than the plain one.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from ...core.metric import AbstractMetric
from .whitening import Whitening, eigh

_DRAWS_A_CONTROL = 20
_MOST_DIMENSIONS = 200  # beyond, the regressions cost more than the chains
_LARGEST = 5000  # draws that a regression looks at
_NOISE = 4.0  # standard errors that a correction may have
_SURE = 3.0  # standard errors that the mean of one control may be from 0, and for many the same probability


class Estimates(NamedTuple):
    """Moments of u = R(x − centre), in which the target's covariance is near the identity."""

    centre: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    mean_error: np.ndarray
    """The standard errors of the means of x, coordinate by coordinate."""
    variance_error: np.ndarray
    """The standard errors of the variances of x, likewise."""
    identity_error: float
    """How far the chains are from E[s] = 0, in standard errors, where that is far in standard deviations as well."""


class Regressed(NamedTuple):
    """Values at some draws, one a row, and the means over all draws by chain."""

    few: np.ndarray
    by_chain: np.ndarray


def moments_by_stein(points: Any, scores: Any, metric: AbstractMetric, smooth: bool = True) -> Estimates:
    """Mean and covariance, each entry with or without the correction, whichever has the smaller error.

    Whitened coordinates keep narrow directions: an error of a hundredth in an entry is one of a hundredth in the spread
    along every direction.

    Args:
        points: of the chains, with axes (transition, chain, coordinate).
        scores: ∇log p there.
        metric: near the inverse of the covariance.
        smooth: whether nothing speaks against Stein's identity: chains do not meet an edge of the density.
    """
    whitening = Whitening.of(metric)
    x = np.asarray(points, np.float64)
    t, n, d = x.shape
    centre = x.mean(axis=(0, 1))
    white, pulled = whitening.whiten(x - centre), whitening.pull_scores(np.asarray(scores, np.float64))
    spacing = max(1, t * n // _LARGEST)
    enough = t * n >= _DRAWS_A_CONTROL * 2 * d and d <= _MOST_DIMENSIONS
    mean_score = pulled.mean(axis=0)
    holds = smooth and _vanish(mean_score)
    few_scores = pulled[::spacing].reshape(-1, d)

    def correct(values: Regressed, controls: Regressed) -> tuple[np.ndarray, np.ndarray]:
        slopes = _slopes(controls.few, values.few)
        return _better(values.by_chain, controls.by_chain, slopes, holds)

    means = white.mean(axis=0)
    if enough:
        means = correct(Regressed(white[::spacing].reshape(-1, d), means), Regressed(few_scores, mean_score))[0]
    mean = means.mean(axis=0)
    inner = white - mean
    by_chain = np.ascontiguousarray(inner.transpose(1, 2, 0))  # (n, d, t)
    products = by_chain @ inner.transpose(1, 0, 2) / t  # (n, d, d): the means of u_i u_j
    plain = products.mean(axis=0)
    covariance, variance_error = plain, _error(np.mean(whitening.unwhiten(inner) ** 2, axis=0))
    if enough:
        controls = by_chain @ pulled.transpose(1, 0, 2) / t + np.eye(d)  # E[u_i s_k] = −δ_ik
        few = inner[::spacing].reshape(-1, d)
        rows, least = np.empty((d, n, d)), np.empty((d, d))
        for i in range(d):
            own = few[:, i, None]
            rows[i], least[i] = correct(
                Regressed(own * few, products[:, i]),
                Regressed(
                    np.concatenate([own * few_scores, few_scores], axis=1),
                    np.concatenate([controls[:, i], mean_score], axis=1),
                ),
            )
        covariance = _positive(rows.mean(axis=1), eigh(plain)[0][0] / 2)
        steps = whitening.steps()
        variance_error = _error(np.sum(steps * (rows.swapaxes(0, 1) @ steps), axis=1))
        variance_error = np.maximum(variance_error, np.sqrt(np.sum(steps**2 * (least**2 @ steps**2), axis=0)))
    far = np.abs(mean_score.mean(axis=0))
    off = np.where(far > 0.1, far / np.maximum(_error(mean_score), 1e-30), 0)
    return Estimates(centre, mean, covariance, _error(whitening.unwhiten(means)), variance_error, float(off.max()))


def _slopes(controls: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The regression of values on controls, rows being draws."""
    controls, values = controls - controls.mean(axis=0), values - values.mean(axis=0)
    gram = controls.T @ controls
    ridge = 1e-8 * np.trace(gram) / len(gram) + np.finfo(gram.dtype).tiny
    return np.linalg.solve(gram + ridge * np.eye(len(gram)), controls.T @ values)


def _better(plain: np.ndarray, offsets: np.ndarray, slopes: np.ndarray, holds: bool) -> tuple[np.ndarray, np.ndarray]:
    """The means by chain, corrected where that is better, and the least error to state of each.

    Args:
        plain: the means of the values by chain.
        offsets: those of the controls, which are 0 at the target.
        slopes: of the regression of the values on the controls.
        holds: whether Stein's identity holds for the scores themselves.
    """
    better = plain - offsets @ slopes
    apart, error = np.abs(better.mean(axis=0) - plain.mean(axis=0)), _error(plain)
    accepted = (_error(better) < error) & (apart <= _NOISE * error) & holds
    doubtful = accepted if not _vanish(offsets) else np.zeros_like(accepted)
    return np.where(accepted, better, plain), np.where(doubtful, np.maximum(apart, error), 0)


def _positive(covariance: np.ndarray, smallest: float) -> np.ndarray:
    """A symmetric matrix with no eigenvalue below `smallest`."""
    values, vectors = eigh((covariance + covariance.T) / 2)
    return (vectors * np.maximum(values, smallest)) @ vectors.T


def _vanish(by_chain: np.ndarray) -> bool:
    """Whether the means of all controls are 0 within their errors."""
    surplus = (1 - NormalDist().cdf(_SURE)) / by_chain.shape[1]
    sure = -NormalDist().inv_cdf(surplus)
    return bool(np.all(np.abs(by_chain.mean(axis=0)) <= sure * _error(by_chain)))


def _error(by_chain: np.ndarray) -> np.ndarray:
    return np.asarray(by_chain.std(axis=0, ddof=1) / len(by_chain) ** 0.5)
