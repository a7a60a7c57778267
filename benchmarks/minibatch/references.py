"""Reference means and standard deviations on all rows, in double precision, with their standard errors.

The logistic regressions are so near to Gaussians that importance sampling from the Gaussian at the mode is exact to a
percent at a fraction of the cost of chains; where there are hundreds of thousands of rows, chains take hours. The
hierarchical regression has chains of NumPyro's NUTS.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from steinkern.experiments.tables import rounded

from ..posteriors.mode import find_mode
from ..posteriors.nuts import Chains
from .posteriors import BUILD, Posterior

CHAINS = 4
WARMUP = 150  # of the step size alone
DRAWS = 1500  # of a chain
PAIRS, GROUPS, BLOCK = 500, 20, 4096  # of importance draws, of those whose spread gives the errors; rows at a time


def one_chain(name: str, chain: int) -> dict[str, Any]:
    """Moments and effective numbers of draws of one chain, in double precision, whitened by the Hessian at the mode."""
    from numpyro.diagnostics import effective_sample_size

    posterior = BUILD[name]()
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, posterior.data)
        bound = posterior.target.bind(np.zeros(posterior.dim))
        mode = find_mode(lambda x: bound.log_density(x, data), np.zeros(posterior.dim))
        root = np.linalg.inv(np.linalg.cholesky(mode.precision)).T

        def whitened(z: Any) -> Any:
            return bound.log_density(jnp.asarray(mode.point) + jnp.asarray(root) @ z, data)

        start_key, run_key = jr.split(jr.fold_in(jr.key(2024), chain))
        start = np.asarray(jr.normal(start_key, (posterior.dim,)))
        chains = Chains(whitened, WARMUP, adapt_mass_matrix=False)
        draws, _ = chains.draws(run_key, start, DRAWS)
    points = mode.point + draws @ root.T
    mean = points.mean(axis=0)
    squares = (points - mean) ** 2
    return {
        "mean": mean.tolist(),
        "variance": points.var(axis=0).tolist(),
        "ess": float(effective_sample_size(points[None]).min()),
        "ess_of_squares": float(effective_sample_size(squares[None]).min()),
        "draws": len(points),
    }


def combine(chains: list[dict[str, Any]]) -> dict[str, Any]:
    """Pooled moments, R-hat, and the standard errors of means (in standard deviations) and of standard deviations."""
    means, variances = (np.array([chain[key] for chain in chains]) for key in ("mean", "variance"))
    within, between = variances.mean(axis=0), means.var(axis=0, ddof=1) if len(chains) > 1 else 0.0
    sd = np.sqrt(within + means.var(axis=0))
    ess, ess_of_squares = (sum(chain[key] for chain in chains) for key in ("ess", "ess_of_squares"))
    draws = sum(chain["draws"] for chain in chains)
    return {
        "how": f"NUTS on all rows: {len(chains)} chains, {draws} draws together, whitened at the mode",
        "mean": rounded(means.mean(axis=0)),
        "sd": rounded(sd),
        "r_hat": round(float(np.sqrt(np.max(1 + between / within))), 5),
        "mean_error": round(float(1 / np.sqrt(ess)), 4),
        "sd_error": round(float(1 / np.sqrt(2 * ess_of_squares)), 4),
    }


def by_importance(name: str) -> dict[str, Any]:
    """Moments of a logistic regression from weighted draws of the Gaussian at the mode.

    Draws are antithetic. The noise of unweighted draws, whose moments are known, is subtracted: what remains is that of
    the weights alone. Errors are from the spread over groups of draws.
    """
    posterior = BUILD[name]()
    features, labels = np.asarray(posterior.data["x"], np.float64), np.asarray(posterior.data["y"], np.float64)
    prior = prior_precision(posterior)
    mode, precision = _logistic_mode(features, labels, prior)
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    half = np.random.default_rng(2024).standard_normal((PAIRS, posterior.dim))
    noise = np.stack([half, -half], axis=1).reshape(-1, posterior.dim)  # a draw beside its mirror image
    points = mode + noise @ root.T
    logs = -0.5 * points**2 @ prior + 0.5 * np.sum(noise**2, axis=1)
    for first in range(0, len(labels), BLOCK):
        linear = features[first : first + BLOCK] @ points.T
        logs += labels[first : first + BLOCK] @ linear - np.sum(np.logaddexp(0, linear), axis=0)
    mean, sd = _weighted(points, logs, mode, root)
    parts = [_weighted(points[part], logs[part], mode, root) for part in np.array_split(np.arange(len(points)), GROUPS)]
    mean_error = np.std([part[0] for part in parts], axis=0) / sd / np.sqrt(GROUPS)
    sd_error = np.std([part[1] for part in parts], axis=0) / sd / np.sqrt(GROUPS)
    weights = np.exp(logs - logs.max())
    share = weights.sum() ** 2 / np.sum(weights**2) / len(weights)
    return {
        "how": f"importance sampling on all rows: {len(points)} draws of the Gaussian at the mode, {share:.0%} count",
        "mean": rounded(mean),
        "sd": rounded(sd),
        "mean_error": round(float(mean_error.max()), 4),
        "sd_error": round(float(sd_error.max()), 4),
    }


def _weighted(
    points: np.ndarray, logs: np.ndarray, mode: np.ndarray, root: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    offsets = points - mode
    mean = weights @ offsets - offsets.mean(axis=0)
    second = weights @ offsets**2 - np.mean(offsets**2, axis=0) + np.sum(root**2, axis=1)
    return mode + mean, np.sqrt(second - mean**2)


def prior_precision(posterior: Posterior) -> np.ndarray:
    """The diagonal of the prior's precision, from its log density."""
    with jax.enable_x64(True):
        found = jax.hessian(posterior.target.log_prior)(jnp.zeros(posterior.dim))
    return -np.diagonal(np.asarray(found))


def _logistic_mode(features: np.ndarray, labels: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode by Newton's method, and the precision there."""
    point = np.zeros(features.shape[1])
    while True:
        chances = 1 / (1 + np.exp(-features @ point))
        precision = (features * (chances * (1 - chances))[:, None]).T @ features + np.diag(prior)
        slope = features.T @ (labels - chances) - prior * point
        step = np.linalg.solve(precision, slope)
        point = point + step
        if slope @ step < 1e-12:
            return point, precision
