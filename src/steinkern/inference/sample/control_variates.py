"""Zero-variance control variates from Stein's identity (Assaraf and Caffarel, 1999; Mira et al., 2013).

At the target E[s] = 0 and E[(x_i − m) s_k] = −δ_ik, where s is the score. The deviation of a sample's means from these
values is noise, which is correlated with the noise in the sample's mean and covariance. Regression removes the
correlated part, which is all of the noise for a Gaussian. Both identities hold for densities that are differentiable
and vanish at the edges of their support. Where chains have met an edge, or where a mean of s is significantly different
from 0, nothing is corrected, and the stated errors are those of plain means. Where only a product (x_i − m) s_k is
significantly different, as for chains that have not converged, the correction is used, and the stated error is at least
the size of the correction and at least the plain error.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from ...linalg.metrics import AbstractMetric
from .whitening import Whitening, eigh

_DRAWS_A_CONTROL = 20
_MOST_DIMENSIONS = 200  # in more dimensions the regressions cost more than the chains
_LARGEST = 5000  # the most draws in a regression
_NOISE = 4.0  # the largest correction, in plain standard errors
_SURE = 3.0  # the significance of a control's mean, in standard errors; adjusted for the number of controls


class Estimates(NamedTuple):
    """Moments of the whitened variable u = R(x − centre), whose covariance is near the identity."""

    centre: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    mean_error: np.ndarray
    """The standard errors of the means of x by coordinate."""
    variance_error: np.ndarray
    """The standard errors of the variances of x by coordinate."""
    identity_error: float
    """The largest deviation of the mean score from 0, in standard errors; 0 where it is below a tenth in whitened
    coordinates."""


class Regressed(NamedTuple):
    """Values for a regression: at a selection of the draws, one row each, and their means by chain over all draws."""

    few: np.ndarray
    by_chain: np.ndarray


def moments_by_stein(points: Any, scores: Any, metric: AbstractMetric, smooth: bool = True) -> Estimates:
    """Mean and covariance; each entry is corrected where the correction has the smaller standard error.

    They are in whitened coordinates, in which relative errors of the spread are equal along all directions, narrow ones
    included.

    Args:
        points: the draws, with axes (transition, chain, coordinate).
        scores: ∇log p at the draws.
        metric: close to the inverse covariance.
        smooth: whether the chains met no edge of the density, so that Stein's identity can hold.
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
    """The coefficients of the regression of values on controls; rows are draws."""
    controls, values = controls - controls.mean(axis=0), values - values.mean(axis=0)
    gram = controls.T @ controls
    ridge = 1e-8 * np.trace(gram) / len(gram) + np.finfo(gram.dtype).tiny
    return np.linalg.solve(gram + ridge * np.eye(len(gram)), controls.T @ values)


def _better(plain: np.ndarray, offsets: np.ndarray, slopes: np.ndarray, holds: bool) -> tuple[np.ndarray, np.ndarray]:
    """The means by chain, corrected where that has the smaller error, and a lower limit of each stated error.

    Args:
        plain: the means of the values by chain.
        offsets: the means of the controls by chain; their expectations are 0.
        slopes: the coefficients of the regression of the values on the controls.
        holds: whether the mean score is 0 within its standard error.
    """
    better = plain - offsets @ slopes
    apart, error = np.abs(better.mean(axis=0) - plain.mean(axis=0)), _error(plain)
    accepted = (_error(better) < error) & (apart <= _NOISE * error) & holds
    doubtful = accepted if not _vanish(offsets) else np.zeros_like(accepted)
    return np.where(accepted, better, plain), np.where(doubtful, np.maximum(apart, error), 0)


def _positive(covariance: np.ndarray, smallest: float) -> np.ndarray:
    """The symmetric part of a matrix, with eigenvalues of at least `smallest`."""
    values, vectors = eigh((covariance + covariance.T) / 2)
    return (vectors * np.maximum(values, smallest)) @ vectors.T


def _vanish(by_chain: np.ndarray) -> bool:
    """Whether the means of all controls are 0 within their standard errors."""
    surplus = (1 - NormalDist().cdf(_SURE)) / by_chain.shape[1]
    sure = -NormalDist().inv_cdf(surplus)
    return bool(np.all(np.abs(by_chain.mean(axis=0)) <= sure * _error(by_chain)))


def _error(by_chain: np.ndarray) -> np.ndarray:
    return np.asarray(by_chain.std(axis=0, ddof=1) / len(by_chain) ** 0.5)
