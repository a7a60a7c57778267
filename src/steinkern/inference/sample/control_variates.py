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
from typing import NamedTuple

import numpy as np

from .whitening import Whitening, eigh

_DRAWS_A_CONTROL = 20  # the least number of draws for each control
_MAX_DIMENSIONS = 200  # in more dimensions the regressions cost more than the chains
_MAX_DRAWS = 5000  # in a regression
_MAX_CORRECTION = 4.0  # in plain standard errors
_SIGNIFICANCE = 3.0  # the significance of a control's mean, in standard errors; adjusted for the number of controls


class Estimates(NamedTuple):
    """Moments of the whitened variable u = R(x − center), whose covariance is near the identity."""

    center: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    mean_error: np.ndarray
    """The standard errors of the means of x by coordinate."""
    variance_error: np.ndarray
    """The standard errors of the variances of x by coordinate."""
    identity_error: float
    """The largest deviation of the mean score from 0, in standard errors; 0 where it is below a tenth in whitened
    coordinates."""

    def moments(self, whitening: Whitening) -> tuple[np.ndarray, np.ndarray]:
        """The means and standard deviations of x."""
        steps = whitening.steps()
        variance = np.sum(steps * (self.covariance @ steps), axis=0)
        return self.center + whitening.unwhiten(self.mean), np.sqrt(np.maximum(variance, 0))


def moments_by_stein(points: np.ndarray, scores: np.ndarray, whitening: Whitening, smooth: bool = True) -> Estimates:
    """Mean and covariance; each entry is corrected where the correction has the smaller standard error.

    They are in whitened coordinates, in which relative errors of the spread are equal along all directions, narrow ones
    included.

    Args:
        points: the draws, with axes (transition, chain, coordinate).
        scores: ∇log p at the draws.
        whitening: of a metric close to the inverse covariance.
        smooth: whether the chains met no edge of the density, so that Stein's identity can hold.
    """
    t, n, d = points.shape
    center = points.mean(axis=(0, 1))
    white, pulled = whitening.whiten(points - center), whitening.pull_scores(scores)
    spacing = max(1, t * n // _MAX_DRAWS)
    means, mean_score = white.mean(axis=0), pulled.mean(axis=0)
    corrects = t * n >= _DRAWS_A_CONTROL * 2 * d and d <= _MAX_DIMENSIONS and smooth and _are_zero(mean_score)
    thinned_scores = pulled[::spacing].reshape(-1, d)
    if corrects:
        means, _ = _correct(means, mean_score, _slopes(thinned_scores, white[::spacing].reshape(-1, d)))
    mean = means.mean(axis=0)
    inner = white - mean
    flat = inner.reshape(-1, d)
    covariance, variance_error = flat.T @ flat / (t * n), _error(np.mean(whitening.unwhiten(inner) ** 2, axis=0))
    if corrects:
        by_chain = np.ascontiguousarray(inner.transpose(1, 2, 0))  # (n, d, t)
        products = by_chain @ inner.transpose(1, 0, 2) / t  # (n, d, d): the means of u_i u_j
        controls = by_chain @ pulled.transpose(1, 0, 2) / t + np.eye(d)  # E[u_i s_k] = −δ_ik
        thinned = inner[::spacing].reshape(-1, d)
        rows, least = np.empty((d, n, d)), np.empty((d, d))
        for i in range(d):
            column = thinned[:, i, None]
            slopes = _slopes(np.concatenate([column * thinned_scores, thinned_scores], axis=1), column * thinned)
            offsets = np.concatenate([controls[:, i], mean_score], axis=1)
            rows[i], least[i] = _correct(products[:, i], offsets, slopes)
        covariance = _make_positive(rows.mean(axis=1), eigh(covariance)[0][0] / 2)
        steps = whitening.steps()
        variance_error = _error(np.sum(steps * (rows.swapaxes(0, 1) @ steps), axis=1))
        variance_error = np.maximum(variance_error, np.sqrt(np.sum(steps**2 * (least**2 @ steps**2), axis=0)))
    size = np.abs(mean_score.mean(axis=0))
    identity_error = np.max(np.where(size > 0.1, size / np.maximum(_error(mean_score), 1e-30), 0))
    mean_error = _error(whitening.unwhiten(means))
    return Estimates(center, mean, covariance, mean_error, variance_error, float(identity_error))


def _slopes(controls: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The coefficients of the regression of values on controls; rows are draws."""
    controls, values = controls - controls.mean(axis=0), values - values.mean(axis=0)
    gram = controls.T @ controls
    ridge = 1e-8 * np.trace(gram) / len(gram) + np.finfo(gram.dtype).tiny
    return np.linalg.solve(gram + ridge * np.eye(len(gram)), controls.T @ values)


def _correct(plain: np.ndarray, offsets: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means by chain, corrected where that has the smaller error, and a lower limit of each stated error.

    Args:
        plain: the means of the values by chain.
        offsets: the means of the controls by chain; their expectations are 0.
        slopes: the coefficients of the regression of the values on the controls.
    """
    corrected = plain - offsets @ slopes
    size, error = np.abs(corrected.mean(axis=0) - plain.mean(axis=0)), _error(plain)
    accepted = (_error(corrected) < error) & (size <= _MAX_CORRECTION * error)
    uncertain = accepted & (not _are_zero(offsets))
    return np.where(accepted, corrected, plain), np.where(uncertain, np.maximum(size, error), 0)


def _make_positive(covariance: np.ndarray, smallest: float) -> np.ndarray:
    """The symmetric part of a matrix, with eigenvalues of at least `smallest`."""
    values, vectors = eigh((covariance + covariance.T) / 2)
    return (vectors * np.maximum(values, smallest)) @ vectors.T


def _are_zero(by_chain: np.ndarray) -> bool:
    """Whether the means of all controls are 0 within their standard errors."""
    quantile = -NormalDist().inv_cdf(NormalDist().cdf(-_SIGNIFICANCE) / by_chain.shape[1])
    return bool(np.all(np.abs(by_chain.mean(axis=0)) <= quantile * _error(by_chain)))


def _error(by_chain: np.ndarray) -> np.ndarray:
    return np.asarray(by_chain.std(axis=0, ddof=1) / len(by_chain) ** 0.5)
