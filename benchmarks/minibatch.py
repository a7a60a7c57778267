"""Posteriors by minibatches: `fit` without a sampler beside SGLD, pSGLD, a mean-field Gaussian and SVGD.

    python -m benchmarks.minibatch [--posteriors NAME ...] [--batches 32 256 2048] [--methods NAME ...] [--epochs 20]

Reference means and standard deviations are those of NumPyro's NUTS on all rows. A row of results is the largest error
of a mean, in reference standard deviations, the largest relative error of a standard deviation, and the epochs at which
both were first below 0.2 and 15 percent, NaN where they never were. An epoch is as many rows as there are, however many
particles see them. The other methods have the best of four step sizes each, by the sum of both errors at the end. Rows
of other posteriors and methods that the file of `--json` has are kept.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core.files import environment
from steinkern.experiments.tables import Row, read_results, write_results

from .posteriors.nuts import Chains

RESULTS = Path(__file__).parent / "results" / "minibatch.json"
PARTICLES, RECORDS = 100, 40
LIMITS = (0.2, 0.15)
WARMUP, DRAWS = 500, 1000
STEP_SIZES = {
    "sgld": (0.03, 0.1, 0.3, 1.0),  # over the number of rows
    "psgld": (1e-4, 1e-3, 1e-2, 1e-1),  # over the number of rows
    "svi": (1e-3, 3e-3, 1e-2, 3e-2),
    "svgd": (0.01, 0.03, 0.1, 0.3),
}
METHODS = ("stein", *STEP_SIZES)


@dataclass(frozen=True)
class Posterior:
    """A target with its data and start, and its log density on all rows as a function of one vector."""

    target: sk.Posterior
    data: Any
    dim: int

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
    return Posterior(sk.Posterior(log_prior, log_likelihood, rows), data, dim)


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


@dataclass(frozen=True)
class Outcome:
    """Means and standard deviations after several numbers of epochs; the last ones are the answer."""

    epochs: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    warned: bool = False

    def errors(self, reference: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """The largest errors of means and of standard deviations, at every record."""
        sd = np.asarray(reference["sd"])
        mean_errors = np.max(np.abs(self.means - reference["mean"]) / sd, axis=1)
        return mean_errors, np.max(np.abs(self.sds / sd - 1), axis=1)


def _of_history(result: Any, batch_size: int, rows: int, before: float = 0.0) -> Outcome:
    recorded = np.asarray(result.history.particles, np.float64)
    epochs = before + result.history.step * batch_size / rows
    return Outcome(epochs, recorded.mean(axis=1), recorded.std(axis=1), bool(result.warnings))


def stein(posterior: Posterior, batch_size: int, epochs: float, key: Any) -> Outcome:
    """`fit` without a sampler; all its epochs are counted, those before the first step included."""
    result = sk.fit(
        key, posterior.target, data=posterior.data, start=jnp.zeros(posterior.dim), num_particles=PARTICLES,
        batch_size=batch_size, record_every=10, record_particles=True, progress=False, throw=False,
    )  # fmt: skip
    taken = result.num_steps * batch_size / posterior.rows
    outcome = _of_history(result, batch_size, posterior.rows, result.settings["cost"]["epochs"] - taken)
    points = np.asarray(result.points, np.float64)
    return Outcome(
        np.append(outcome.epochs, result.settings["cost"]["epochs"]),
        np.concatenate([outcome.means, points.mean(axis=0)[None]]),
        np.concatenate([outcome.sds, points.std(axis=0)[None]]),
        bool(result.warnings),
    )


def by_fit(name: str, size: float, posterior: Posterior, batch_size: int, epochs: float, key: Any) -> Outcome:
    """SGLD, pSGLD or SVGD from N(0, I)."""
    steps = max(int(epochs * posterior.rows / batch_size), 1)
    samplers = {
        "sgld": lambda: sk.sgld(size / posterior.rows),
        "psgld": lambda: sk.psgld(size / posterior.rows),
        "svgd": lambda: sk.svgd(optimiser=size),
    }
    first = jr.normal(jr.key(7), (PARTICLES, posterior.dim))
    result = sk.fit(
        key, posterior.target, samplers[name](), first, posterior.data, num_steps=steps, batch_size=batch_size,
        record_every=max(steps // RECORDS, 1), record_particles=True, progress=False, throw=False,
    )  # fmt: skip
    return _of_history(result, batch_size, posterior.rows)


def svi(size: float, posterior: Posterior, batch_size: int, epochs: float, key: Any) -> Outcome:
    """NumPyro's SVI with Adam on a mean-field Gaussian."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    bound = posterior.target.bind(np.zeros(posterior.dim))

    def model(batch: Any) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (posterior.dim,)))
        numpyro.factor("density", bound.log_density(x, batch))

    guide = AutoNormal(model, init_loc_fn=numpyro.infer.init_to_value(values={"x": jnp.zeros(posterior.dim)}))
    inference = SVI(model, guide, numpyro.optim.Adam(size), Trace_ELBO())
    data = jax.tree.map(jnp.asarray, posterior.data)
    steps = max(int(epochs * posterior.rows / batch_size), 1)
    chunk = max(steps // RECORDS, 1)

    @jax.jit
    def advance(state: Any, key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            return inference.update(state, bound.batch(data, batch_size, key))[0], None

        return jax.lax.scan(step, state, jr.split(key, chunk))[0]

    means, sds = [], []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state = inference.init(key, bound.batch(data, batch_size, key))
        for turn in range(steps // chunk):
            state = advance(state, jr.fold_in(key, turn))
            found = inference.get_params(state)
            means.append(np.asarray(found["x_auto_loc"], np.float64))
            sds.append(np.asarray(found["x_auto_scale"], np.float64))
    taken = (1 + np.arange(len(means))) * chunk * batch_size / posterior.rows
    return Outcome(taken, np.stack(means), np.stack(sds))


def outcomes(method: str, posterior: Posterior, batch_size: int, epochs: float, key: Any) -> Iterator[Outcome]:
    """Those of one method, one a step size."""
    if method == "stein":
        yield stein(posterior, batch_size, epochs, key)
        return
    for size in STEP_SIZES[method]:
        if method == "svi":
            yield svi(size, posterior, batch_size, epochs, key)
        else:
            yield by_fit(method, size, posterior, batch_size, epochs, key)


def rows_of(case: str, method: str, found: list[Outcome], reference: dict[str, Any]) -> list[Row]:
    """The rows of the best step size."""
    errors = [outcome.errors(reference) for outcome in found]
    ends = [mean[-1] / LIMITS[0] + sd[-1] / LIMITS[1] for mean, sd in errors]
    best = int(np.argmin(np.where(np.isfinite(ends), ends, np.inf)))
    outcome, (mean_errors, sd_errors) = found[best], errors[best]
    within = (mean_errors < LIMITS[0]) & (sd_errors < LIMITS[1])
    metrics = {
        "max_mean_error": mean_errors[-1],
        "max_sd_error": sd_errors[-1],
        "good": float(within[-1]),
        "epochs": outcome.epochs[-1],
        "epochs_to_reach": outcome.epochs[np.argmax(within)] if within.any() else math.nan,
        "warned": float(outcome.warned),
        "silent_failure": float(not within[-1] and not outcome.warned),
        "step_size": STEP_SIZES[method][best] if method in STEP_SIZES else math.nan,
    }
    return [Row(case, method, metric, float(value), math.nan, 1) for metric, value in metrics.items()]


def nuts_reference(posterior: Posterior) -> dict[str, Any]:
    """Means and standard deviations by NUTS on all rows, in double precision, from the mode."""
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, posterior.data)
        bound = posterior.target.bind(np.zeros(posterior.dim))
        around = sk.initial.around_mode(jr.key(0), posterior.target, np.zeros(posterior.dim), 2, data, scale=1e-3)
        start = np.asarray(around)[0]
        draws, _ = Chains(lambda x: bound.log_density(x, data), WARMUP, dense_mass=True).draws(jr.key(1), start, DRAWS)
    return {"mean": draws.mean(axis=0).tolist(), "sd": draws.std(axis=0).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriors", nargs="+", choices=list(BUILD), default=list(BUILD))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 256, 2048])
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept: dict[tuple[str, str], list[Row]] = {}
    references: dict[str, Any] = {}
    if options.json.exists():
        _, settings, rows = read_results(options.json)
        references = settings["references"]
        for row in rows:
            kept.setdefault((row.case, row.method), []).append(row)
    for name in options.posteriors:
        posterior = BUILD[name]()
        if name not in references:
            # On arrays of its own: JAX caches by identity whether a NumPy array has 32 or 64 bits.
            references[name] = nuts_reference(BUILD[name]())
        for batch_size in options.batches:
            for method in options.methods:
                case = f"{name},batch={batch_size}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = list(outcomes(method, posterior, batch_size, options.epochs, jr.key(0)))
                kept[case, method] = rows_of(case, method, found, references[name])
                number = {row.metric: row.mean for row in kept[case, method]}
                print(
                    f"{case:32} {method:6} means {number['max_mean_error']:.3g} sds {number['max_sd_error']:.2%} "
                    f"epochs {number['epochs']:.1f} reached at {number['epochs_to_reach']:.1f}",
                    flush=True,
                )
                settings = {"limits": LIMITS, "references": references, "environment": environment()}
                write_results(options.json, "minibatch", settings, [row for rows in kept.values() for row in rows])
                jax.clear_caches()


if __name__ == "__main__":
    main()
