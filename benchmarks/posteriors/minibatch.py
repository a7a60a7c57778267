"""Posteriors by minibatches: `fit` without a sampler beside SGLD, pSGLD, a mean-field Gaussian and SVGD.

Reference means and standard deviations are those on all rows. A row of results is the largest error of a mean, in
reference standard deviations, the largest relative error of a standard deviation, and the epochs at which both were
first below 0.2 and 15 percent, NaN where they never were. An epoch is as many rows as there are, however many particles
see them. `stein` has three seeds and nothing to choose. The other methods have one seed, 20 epochs and the best of four
step sizes, by the sum of both errors at the end, which a user does not know.
"""

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

from ..bench import Answer, Benchmark, Row
from .target import Target, read_references

BATCHES = (32, 256, 2048)
EPOCHS, PARTICLES, RECORDS, SEEDS = 20.0, 100, 40, 3
LIMITS = (0.2, 0.15)
STEP_SIZES: dict[str, tuple[float, ...]] = {
    "sgld": (0.03, 0.1, 0.3, 1.0),
    "psgld": (0.003, 0.01, 0.03, 0.1),
    "svi": (1e-3, 3e-3, 1e-2, 3e-2),
    "svgd": (0.01, 0.03, 0.1, 0.3),
}


class Problem(NamedTuple):
    """A target with its data, and the largest scale of its columns, for which the rivals' step sizes are made."""

    target: sk.Posterior
    data: Any
    dim: int
    largest_scale: float = 1.0

    @property
    def rows(self) -> int:
        return len(self.data["y"])

    def on_all_rows(self, name: str) -> Target:
        """Its log density on all rows."""
        bound = self.target.bind(np.zeros(self.dim))
        return Target(name, lambda x: bound.log_density(x, self.data), self.dim, "rules", "all rows")


@dataclass(frozen=True)
class Outcome:
    """Means and standard deviations after several numbers of epochs; the last ones are the answer."""

    epochs: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    warned: bool = False

    def numbers(self, reference: dict[str, Any]) -> dict[str, float]:
        """The errors at the end, and the epochs until they were small; infinite errors where not finite."""
        sd = np.asarray(reference["sd"])
        errors = np.max(np.abs(self.means - reference["mean"]) / sd, axis=1), np.max(np.abs(self.sds / sd - 1), axis=1)
        mean_errors, sd_errors = (np.where(np.isfinite(error), error, np.inf) for error in errors)
        within = (mean_errors < LIMITS[0]) & (sd_errors < LIMITS[1])
        return {
            "max_mean_error": mean_errors[-1],
            "max_sd_error": sd_errors[-1],
            "good": float(within[-1]),
            "epochs": self.epochs[-1],
            "epochs_to_reach": self.epochs[np.argmax(within)] if within.any() else math.nan,
            "warned": float(self.warned),
            "silent_failure": float(not within[-1] and not self.warned),
        }


def logistic(rows: int, dim: int, scales: Any = 1.0) -> Problem:
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
    return Problem(sk.Posterior(log_prior, log_likelihood, rows), data, dim, float(np.max(scales)))


def hierarchical(rows: int, groups: int, slopes: int) -> Problem:
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
    return Problem(sk.Posterior(log_prior, log_likelihood, rows), data, 3 + slopes + groups)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "logistic-10k": lambda: logistic(10_000, 10),
    "logistic-scaled-50k": lambda: logistic(50_000, 12, 10.0 ** np.linspace(-2, 2, 12)),
    "logistic-500k": lambda: logistic(500_000, 20),
    "hierarchical-20k": lambda: hierarchical(20_000, 20, 3),
}


def langevin_step(method: str, size: float, problem: Problem, batch_size: int) -> float:
    """The step size of SGLD or pSGLD: 1/N for the curvature, and smaller where the noise of small batches asks for it.

    The noise of the gradient adds about ε N/b to the temperature of 1, so ε N is kept below 10 b/N. Columns of other
    scales change the curvature by the scale squared, and pSGLD's preconditioner takes back one of the two.
    """
    scale = problem.largest_scale ** (2 if method == "sgld" else 1)
    return size / scale / problem.rows * min(1.0, 10 * batch_size / problem.rows)


def moments(recorded: np.ndarray, averaged: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of the particles at every record (records, n, d); of chains over the second half of the records until then."""
    draws = [recorded[(end // 2 if averaged else end - 1) : end] for end in range(1, len(recorded) + 1)]
    flat = [part.reshape(-1, recorded.shape[2]) for part in draws]
    return np.stack([part.mean(axis=0) for part in flat]), np.stack([part.std(axis=0) for part in flat])


def stein(problem: Problem, batch_size: int, seed: int) -> Outcome:
    """`fit` without a sampler: its particles, and all its epochs, those of the checks included."""
    result = sk.fit(
        jr.key(seed), problem.target, data=problem.data, start=jnp.zeros(problem.dim), num_particles=PARTICLES,
        batch_size=batch_size, progress=False, throw=False,
    )  # fmt: skip
    points = np.asarray(result.points, np.float64)
    return Outcome(
        np.array([result.diagnostics.cost.epochs]), *moments(points[None], averaged=False), bool(result.warnings)
    )


def by_fit(method: str, size: float, problem: Problem, batch_size: int) -> Outcome:
    """SGLD, pSGLD or SVGD from N(0, I). The chains of the first two are averaged over time too, as they are used."""
    steps = max(int(EPOCHS * problem.rows / batch_size), 1)
    step_size = size if method == "svgd" else langevin_step(method, size, problem, batch_size)
    sampler = sk.svgd(None, step_size) if method == "svgd" else getattr(sk, method)(step_size)
    result = sk.fit(
        jr.key(0), problem.target, sampler, jr.normal(jr.key(7), (PARTICLES, problem.dim)), problem.data,
        num_steps=steps, batch_size=batch_size, record_every=max(steps // RECORDS, 1), record_particles=True,
        progress=False, throw=False,
    )  # fmt: skip
    means, sds = moments(np.asarray(result.history.particles, np.float64), averaged=method != "svgd")
    epochs = np.asarray(result.history.step) * batch_size / problem.rows
    return Outcome(epochs, means, sds, bool(result.warnings))


def svi(size: float, problem: Problem, batch_size: int) -> Outcome:
    """NumPyro's SVI with Adam on a mean-field Gaussian."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    bound, key = problem.target.bind(np.zeros(problem.dim)), jr.key(0)

    def model(batch: Any) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (problem.dim,)))
        numpyro.factor("density", bound.log_density(x, batch))

    guide = AutoNormal(model, init_loc_fn=numpyro.infer.init_to_value(values={"x": jnp.zeros(problem.dim)}))
    inference = SVI(model, guide, numpyro.optim.Adam(size), Trace_ELBO())
    data = jax.tree.map(jnp.asarray, problem.data)
    steps = max(int(EPOCHS * problem.rows / batch_size), 1)
    chunk = max(steps // RECORDS, 1)

    @jax.jit
    def advance(state: Any, key: Any, data: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            return inference.update(state, bound.batch(data, batch_size, key))[0], None

        return jax.lax.scan(step, state, jr.split(key, chunk))[0]

    state, records = inference.init(key, bound.batch(data, batch_size, key)), []
    for number in range(steps // chunk):
        state = advance(state, jr.fold_in(key, number), data)
        records.append(inference.get_params(state))
    means, sds = (np.stack([record[f"x_auto_{name}"] for record in records]) for name in ("loc", "scale"))
    return Outcome((1 + np.arange(len(records))) * chunk * batch_size / problem.rows, means, sds)


def best_step_size(outcomes: dict[float, Outcome], reference: dict[str, Any]) -> dict[str, float]:
    """The numbers of the outcome whose errors at the end are smallest together, and its step size."""
    numbers = {size: outcome.numbers(reference) for size, outcome in outcomes.items()}
    ends = {
        size: each["max_mean_error"] / LIMITS[0] + each["max_sd_error"] / LIMITS[1] for size, each in numbers.items()
    }
    best = min(ends, key=ends.__getitem__)
    return {**numbers[best], "step_size": best}


def run(case: str, method: str, options: Namespace) -> Answer:
    """One method, with all its seeds or step sizes."""
    name, batch_size = case.split(",batch=")[0], int(case.split("=")[1])
    problem, reference = PROBLEMS[name](), read_references()[name]
    if method == "stein":
        seeds = range(options.seeds or SEEDS)
        numbers = [stein(problem, batch_size, seed).numbers(reference) for seed in seeds]
        return Answer([Row.over([each[metric] for each in numbers], case, method, metric) for metric in numbers[0]])
    outcomes = {
        size: svi(size, problem, batch_size) if method == "svi" else by_fit(method, size, problem, batch_size)
        for size in STEP_SIZES[method]
    }
    best = best_step_size(outcomes, reference)
    return Answer([Row(case, method, metric, float(value)) for metric, value in best.items()])


BENCHMARKS = {
    "minibatch": Benchmark(
        [
            (f"{name},batch={batch}", method)
            for name in PROBLEMS
            for batch in BATCHES
            for method in ("stein", *STEP_SIZES)
        ],
        run,
        settings={"limits": LIMITS, "epochs": EPOCHS, "step_sizes": STEP_SIZES},
    )
}
