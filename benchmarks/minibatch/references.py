"""Reference means and standard deviations: chains of NumPyro's NUTS on all rows."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from steinkern.experiments.tables import rounded

from ..posteriors.mode import find_mode
from ..posteriors.nuts import Chains
from .posteriors import BUILD

CHAINS = 8
WARMUP = 150  # of the step size alone
DRAWS = {"logistic-500k": 400}  # of a chain
_DRAWS = 1500


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
        draws, _ = chains.draws(run_key, start, DRAWS.get(name, _DRAWS))
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
