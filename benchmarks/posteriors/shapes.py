"""Shapes whose means and standard deviations are known exactly: Gaussians, a funnel, a banana, four modes."""

import jax
import jax.numpy as jnp
import numpy as np

from .target import Target, like, log_normal_density, normal


def _random_gaussian(seed: int, eigenvalues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A mean, and a covariance of these eigenvalues in a random basis."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(eigenvalues.size, eigenvalues.size)))
    return rng.normal(size=eigenvalues.size) * 3, (basis * eigenvalues) @ basis.T


def _autocorrelated(seed: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """A mean, and a covariance of standard deviations 0.5 to 4 whose neighbours are correlated by 0.7."""
    rng = np.random.default_rng(seed)
    sd = np.exp(rng.uniform(np.log(0.5), np.log(4.0), d))
    apart = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    return rng.normal(size=d) * 3, sd[:, None] * 0.7**apart * sd[None, :]


ANISOTROPIC = _random_gaussian(31, np.logspace(-2, 2, 20))
WIDE = _autocorrelated(32, 100)

FUNNEL_SD = 3.0
BANANA_MEAN, BANANA_SD, BANANA_BEND = 0.5, 1.5, 0.5
MODES = np.array([[-3.0, -2.5], [3.0, -3.0], [-2.5, 3.5], [3.5, 3.0]])
MODE_SDS = np.array([0.6, 0.8, 0.7, 0.5])
MODE_WEIGHTS = np.array([0.3, 0.3, 0.2, 0.2])


def _gaussian(moments: tuple[np.ndarray, np.ndarray]):
    mean, covariance = moments
    precision = np.linalg.inv(covariance)
    precision = (precision + precision.T) / 2

    def log_density(x):
        centre, matrix = like(x, mean, precision)
        return -0.5 * (x - centre) @ matrix @ (x - centre)

    return log_density


def _funnel(x):
    log_variance, rest = x[0], x[1:]
    return normal(log_variance, 0.0, FUNNEL_SD) + normal(rest, 0.0, jnp.full_like(rest, jnp.exp(log_variance / 2)))


def _banana(x):
    return normal(x[0], BANANA_MEAN, BANANA_SD) + normal(x[1], BANANA_BEND * x[0] ** 2, 1.0)


def _four_modes(x):
    centres, sds, log_weights = like(x, MODES, MODE_SDS, np.log(MODE_WEIGHTS))
    each = log_normal_density(jnp.broadcast_to(x, (4, 2)), centres, sds[:, None])
    return jax.scipy.special.logsumexp(log_weights + each.sum(axis=1))


TARGETS = (
    Target("gaussian-anisotropic", _gaussian(ANISOTROPIC), 20, "held out", "condition number 1e4 in a random basis"),
    Target("gaussian-100", _gaussian(WIDE), 100, "rules", "100 dimensions, neighbours correlated by 0.7, sds 0.5 to 4"),
    Target("funnel", _funnel, 10, "rules", "Neal's funnel: a log variance N(0, 9), and nine N(0, exp(it))"),
    Target("banana", _banana, 2, "held out", "a bent Gaussian"),
    Target("four-modes", _four_modes, 2, "rules", "four separated Gaussian modes of unequal weight and width"),
)
