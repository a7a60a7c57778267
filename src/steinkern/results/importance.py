"""Pareto-smoothed importance sampling (PSIS): smoothed weights, and their diagnostic k̂.

Vehtari, Simpson, Gelman, Yao and Gabry, Pareto smoothed importance sampling, JMLR 25(72), 2024.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..core.arrays import as_concrete_key, as_data, as_numpy
from ..core.errors import explain_errors
from ..core.keywords import helpful_keywords
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points, PyTree, check_count, is_real_number
from ..targets.target import AbstractTarget
from .result import Result

_SHORTEST_TAIL = 5  # weights; a generalised Pareto distribution is not fitted to fewer
_PRIOR_DRAWS, _PRIOR_SHAPE = 10, 0.5  # k̂ is shrunk to this value as by so many tail weights more
_ROUNDING = 16  # weights that differ by fewer spacings of their logarithms count as equal
_AT_A_TIME = 256  # log densities evaluated in one batch


@dataclass(frozen=True, eq=False)
class PSIS:
    """Pareto-smoothed importance weights and their diagnostics; from `psis` or `gaussian_psis`."""

    log_weights: np.ndarray
    """(S,) logarithms of the smoothed weights, which sum to 1."""
    k_hat: float
    """The shape k of the generalised Pareto distribution fitted to the largest weights.

    Weights of a tail with shape k have finite moments up to the order 1/k. ∞ where fewer than five weights are in the
    tail, so that nothing can be fitted; −∞ where the largest weights are equal, so that there is no tail."""
    effective_sample_size: float
    """1 / Σ w², times the relative efficiency of the draws: so many draws of the target have the same variance."""
    particles: PyTree = None
    """The draws that the weights belong to, in constrained coordinates; only from `gaussian_psis`."""

    @property
    def weights(self) -> np.ndarray:
        """(S,) smoothed weights, which sum to 1: Σ w f(x) estimates the mean of f under the target."""
        return np.exp(self.log_weights)

    @property
    def threshold(self) -> float:
        """The largest k̂ at which S draws suffice: min(1 − 1/log₁₀ S, 0.7)."""
        return _threshold(len(self.log_weights))

    @property
    def reliable(self) -> bool:
        """Whether k̂ is below `threshold`, so that estimates by these weights have a small error."""
        return self.k_hat < self.threshold

    @property
    def draws_needed(self) -> float:
        """10^(1/(1 − max(k̂, 0))), the number of draws for a small error; ∞ from k̂ = 1 on."""
        shape = max(self.k_hat, 0.0)
        exponent = 1 / (1 - shape) if shape < 1 else math.inf
        return 10.0**exponent if exponent < 300 else math.inf

    def sentence(self) -> str:
        """The diagnosis in one line."""
        number = len(self.log_weights)
        said = f"k̂ {self.k_hat:.2f}, effective sample size {self.effective_sample_size:.0f} of {number}"
        if self.reliable:
            return f"Reliable weights: {said} (k̂ below {self.threshold:.2f})."
        if not math.isfinite(self.k_hat):
            return f"UNRELIABLE weights: too few of them for a fit of their tail ({number})."
        if self.k_hat >= 1:
            return f"UNRELIABLE weights: {said}; weights of k̂ ≥ 1 have no finite mean, and more draws do not help."
        needed = self.draws_needed
        more = f"about {needed:,.0f} draws would be needed" if needed < 1e9 else "no practical number of draws suffices"
        return f"UNRELIABLE weights: {said} (k̂ not below {self.threshold:.2f}); {more}."

    def __repr__(self) -> str:
        return f"PSIS: {self.sentence()}"


@helpful_keywords
def psis(log_weights: Any, relative_efficiency: float = 1.0) -> PSIS:
    """Smooth importance weights, and compute k̂, which tells whether they are reliable.

    For S draws x_i of an approximation q the weights w_i = p(x_i) / q(x_i) turn averages over q into averages over the
    target p. A few huge weights spoil such averages. PSIS fits a generalised Pareto distribution to the
    min(S/5, 3√S) largest weights, replaces them by the quantiles of the fit at (j − ½)/M, and truncates at the largest
    raw weight. The shape k̂ of the fit measures how heavy the tail is. Estimates are reliable for
    k̂ < min(1 − 1/log₁₀ S, 0.7); from 0.7 on no practical number of draws suffices, and q should not be used as it is.

    ```python
    x = q_mean + q_sd * jax.random.normal(key, (1000,))
    weighted = sk.psis(log_p(x) - log_q(x))
    weighted.k_hat, weighted.effective_sample_size, weighted.weights @ x
    ```

    The fit is by Zhang and Stephens (2009), with the prior of Vehtari et al. on k. All is computed in double precision.
    k̂ sees only the region where q has draws: a mode of p that q never visits leaves the weights even. It is about the
    tail alone: where nearly all weights are equal, and the effective sample size nearly S, a large k̂ means little.

    Args:
        log_weights: (S,) values log p(x_i) − log q(x_i), up to a constant; −∞ outside of the support of p.
        relative_efficiency: effective over nominal number of draws, below 1 for draws of a Markov chain.
    """
    raw = as_numpy("log_weights", log_weights)
    _check_weights(raw)
    if not (is_real_number(relative_efficiency) and 0 < relative_efficiency < math.inf):
        raise ValueError(f"`relative_efficiency` must be a positive number, got {relative_efficiency!r}.")
    spacing = float(np.finfo(raw.dtype).eps) if raw.dtype.kind == "f" else float(np.finfo(np.float64).eps)
    numbers = raw.astype(np.float64)
    log_ratios = numbers - np.max(numbers)
    rounding = _ROUNDING * spacing * max(1.0, float(np.max(np.abs(numbers[np.isfinite(numbers)]))))
    k_hat, smoothed = _smooth(log_ratios, float(relative_efficiency), rounding)
    normalised = smoothed - np.log(np.sum(np.exp(smoothed)))  # the largest is near 0
    size = float(relative_efficiency) / float(np.sum(np.exp(2 * normalised)))
    return PSIS(normalised, k_hat, size)


def _check_weights(raw: np.ndarray) -> None:
    if raw.ndim != 1 or not len(raw) or raw.dtype.kind == "c":
        raise ValueError(
            f"`log_weights` must be one real number for each draw, shape (S,), got shape {raw.shape} of {raw.dtype}. "
            "For several sets of weights call `psis` on each."
        )
    bad = int(np.sum(np.isnan(raw) | (raw == np.inf)))
    if bad:
        raise ValueError(
            f"`log_weights` must be numbers below infinity, got NaN or +inf in {bad} of {len(raw)}. Give −inf to draws "
            "outside of the target's support."
        )
    if np.max(raw) == -np.inf:
        raise ValueError(
            "`log_weights` must be finite for at least one draw, got −inf for all: no draw has any weight."
        )


def _threshold(number: int) -> float:
    return min(1 - 1 / math.log10(number), 0.7) if number > 1 else -math.inf


def _smooth(log_ratios: np.ndarray, efficiency: float, rounding: float) -> tuple[float, np.ndarray]:
    """k̂ and the smoothed log weights, for log weights whose largest is 0."""
    number = len(log_ratios)
    length = math.ceil(min(number / 5, 3 * math.sqrt(number / efficiency)))
    order = np.argsort(log_ratios, kind="stable")
    if length >= number:
        return math.inf, log_ratios
    cutoff = max(float(log_ratios[order[-length - 1]]), math.log(np.finfo(np.float64).tiny))
    if -cutoff <= rounding:
        return -math.inf, log_ratios
    tail = order[log_ratios[order] > cutoff]  # from the smallest to the largest
    if len(tail) < _SHORTEST_TAIL:
        return math.inf, log_ratios
    shape, scale = fit_generalised_pareto(np.exp(log_ratios[tail]) - math.exp(cutoff))
    smoothed = log_ratios.copy()
    if math.isfinite(shape):
        levels = (np.arange(len(tail)) + 0.5) / len(tail)
        excess = scale * (np.expm1(-shape * np.log1p(-levels)) / shape if shape else -np.log1p(-levels))
        smoothed[tail] = np.minimum(np.log(excess + math.exp(cutoff)), 0.0)
    return shape, smoothed


def fit_generalised_pareto(excesses: np.ndarray) -> tuple[float, float]:
    """Shape k and scale σ of the generalised Pareto distribution with P(X > x) = (1 + k x/σ)^(−1/k).

    With b = −k/σ the likelihood maximised over k is a function of b alone, n log(−b/k(b)) − n k(b) − n, where
    k(b) = mean log(1 − b x). The estimate is the mean of b under this profile likelihood and the prior of Zhang and
    Stephens (2009), on a grid of 30 + √n values; then k = k(b), shrunk to ½ as by ten more excesses.

    Args:
        excesses: (n,) positive numbers in ascending order.
    """
    n = len(excesses)
    size = 30 + math.isqrt(n)
    quartile = excesses[int(n / 4 + 0.5) - 1]
    grid = 1 / excesses[-1] + (1 - np.sqrt(size / (np.arange(size) + 0.5))) / (3 * quartile)
    shapes = np.mean(np.log1p(-grid[:, None] * excesses[None, :]), axis=1)
    profile = n * (np.log(-grid / shapes) - shapes - 1)
    weights = np.exp(profile - np.max(profile))
    weights /= np.sum(weights)
    weights[weights < 10 * np.finfo(np.float64).eps] = 0.0
    b = float(np.sum(grid * weights) / np.sum(weights))
    shape = float(np.mean(np.log1p(-b * excesses)))
    return (n * shape + _PRIOR_DRAWS * _PRIOR_SHAPE) / (n + _PRIOR_DRAWS), -shape / b


@helpful_keywords
def gaussian_psis(key: KeyLike, result: Result, data: Batch = None, *, num_draws: int = 2000) -> PSIS:
    """PSIS of the Gaussian with the mean and covariance of a result's particles, against the target.

    k̂ says how far the posterior is from the Gaussian that the particles describe, in unconstrained coordinates: below
    0.7 a Gaussian (Laplace, variational) summary of the posterior can be corrected by weights, above it cannot. A large
    k̂ has two causes: particles that are too close together, or a posterior with another shape than a Gaussian. The
    check at the end of `fit` (`result.verdict`) tells them apart. The target is evaluated at `num_draws` new points.

    ```python
    weighted = sk.gaussian_psis(jax.random.key(1), result)
    print(weighted.sentence())
    weighted.weights @ weighted.particles      # the posterior mean, by importance sampling
    ```

    Args:
        key: PRNG key of the draws.
        result: of `fit` or `sample`, with more particles than coordinates.
        data: the full data of the fit, if any.
        num_draws: the number of draws S of the Gaussian.
    """
    check_count("num_draws", num_draws)
    if not isinstance(result, Result):
        raise ValueError(f"`result` must be what `fit` or `sample` return, got {type(result).__name__}.")
    data = as_data(data)
    result.target.check_data(data, None)
    dtype = result.points_in_jax().dtype  # warns where this precision is too coarse
    mean, root = _fit_gaussian(np.asarray(result.points, np.float64))
    noise = np.asarray(jr.normal(as_concrete_key(key), (num_draws, len(mean)), dtype), np.float64)
    points = jnp.asarray(mean + noise @ root.T, dtype)
    log_q = -0.5 * np.sum(noise**2, axis=1) - np.sum(np.log(np.diag(root))) - len(mean) / 2 * math.log(2 * math.pi)
    with explain_errors("`data` must be as `fit` had them", "Were they meant for another target?"):
        values, particles = _evaluate(result.target, points, data)
    log_p = np.asarray(values)
    unknown = int(np.sum(np.isnan(log_p)))
    if unknown:
        raise ValueError(
            f"`result` has a target whose log density is NaN at {unknown} of {num_draws} draws of the Gaussian. Return "
            "`-jnp.inf` outside of the support, or give the parameters a `support`."
        )
    with np.errstate(over="ignore"):
        log_weights = (log_p.astype(np.float64) - log_q).astype(log_p.dtype)
    return replace(psis(log_weights), particles=jax.tree.map(np.asarray, particles))


def _fit_gaussian(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the Cholesky factor of the covariance of (n, d) points."""
    n, d = points.shape
    way_out = "Take more particles, or draws of an approximation of yours with `psis`."
    if n <= d:
        raise ValueError(
            f"`result` must have more particles than its {d} coordinates for a Gaussian, got {n}. {way_out}"
        )
    mean = np.mean(points, axis=0)
    sds = np.std(points, axis=0, ddof=1)
    try:
        if not np.all(sds > 0):
            raise np.linalg.LinAlgError
        scaled = (points - mean) / sds
        root = np.linalg.cholesky(scaled.T @ scaled / (n - 1))
    except np.linalg.LinAlgError:
        raise ValueError(
            f"`result` must have particles that span all {d} coordinates, got collapsed ones. {way_out}"
        ) from None
    return mean, sds[:, None] * root


@compiled
def _evaluate(target: AbstractTarget, points: Points, data: Batch) -> Any:
    values = jax.lax.map(lambda point: target.log_density(point, data), points, batch_size=_AT_A_TIME)
    return values, jax.vmap(target.bound_space.constrain)(points)
