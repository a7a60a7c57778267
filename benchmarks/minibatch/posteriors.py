"""The posteriors: three logistic regressions and a hierarchical regression, on generated data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import steinkern as sk


@dataclass(frozen=True)
class Posterior:
    """A target with its data and start, and its log density on all rows as a function of one vector."""

    target: sk.Posterior
    data: Any
    dim: int
    largest_scale: float = 1.0
    """Of the columns: curvature is up to this squared times as large, and the rivals' step sizes are made for that."""

    @property
    def rows(self) -> int:
        return len(jax.tree.leaves(self.data)[0])

    def log_density(self, x: Any) -> Any:
        return self.target.bind(np.zeros(self.dim)).log_density(x, self.data)


def logistic(rows: int, dim: int, scales: Any = 1.0) -> Posterior:
    """A logistic regression with an intercept; `scales` are those of the columns."""
    random = np.random.default_rng(rows)
    features = np.concatenate([np.ones((rows, 1)), random.standard_normal((rows, dim - 1))], axis=1) * scales
    weights = random.standard_normal(dim) / np.sqrt(dim) / scales
    labels = random.random(rows) < 1 / (1 + np.exp(-features @ weights))
    sd = jnp.asarray(2.0 / np.broadcast_to(scales, dim), jnp.float32)

    def log_prior(x: Any) -> Any:
        return -0.5 * jnp.sum((x / sd.astype(x.dtype)) ** 2)

    def log_likelihood(x: Any, row: Any) -> Any:
        linear = jnp.vdot(row["x"].astype(x.dtype), x)
        return row["y"].astype(x.dtype) * linear - jnp.logaddexp(0, linear)

    data = {"x": features.astype(np.float32), "y": labels.astype(np.float32)}
    return Posterior(sk.Posterior(log_prior, log_likelihood, rows), data, dim, float(np.max(scales)))


def hierarchical(rows: int, groups: int, slopes: int) -> Posterior:
    """A linear regression whose intercepts vary between groups: mean, log spread, log noise, slopes, intercepts."""
    random = np.random.default_rng(rows)
    group = random.integers(0, groups, rows)
    features = random.standard_normal((rows, slopes))
    intercepts = 1 + 0.7 * random.standard_normal(groups)
    labels = intercepts[group] + features @ random.standard_normal(slopes) + 1.5 * random.standard_normal(rows)

    def log_prior(x: Any) -> Any:
        mean, log_spread, log_noise, own, coefficients = x[0], x[1], x[2], x[3 + slopes :], x[3 : 3 + slopes]
        among = -0.5 * jnp.sum(((own - mean) * jnp.exp(-log_spread)) ** 2) - groups * log_spread
        return among - 0.5 * (mean**2 + log_spread**2 + log_noise**2) / 4 - 0.5 * jnp.sum(coefficients**2) / 4

    def log_likelihood(x: Any, row: Any) -> Any:
        line = x[3 + slopes :][row["group"]] + jnp.vdot(row["x"].astype(x.dtype), x[3 : 3 + slopes])
        return -0.5 * ((row["y"].astype(x.dtype) - line) * jnp.exp(-x[2])) ** 2 - x[2]

    data = {
        "x": features.astype(np.float32), "y": labels.astype(np.float32), "group": group.astype(np.int32)
    }  # fmt: skip
    return Posterior(sk.Posterior(log_prior, log_likelihood, rows), data, 3 + slopes + groups)


BUILD: dict[str, Callable[[], Posterior]] = {
    "logistic-10k": lambda: logistic(10_000, 10),
    "logistic-scaled-50k": lambda: logistic(50_000, 12, 10.0 ** np.linspace(-2, 2, 12)),
    "logistic-500k": lambda: logistic(500_000, 20),
    "hierarchical-20k": lambda: hierarchical(20_000, 20, 3),
}
