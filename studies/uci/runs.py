"""The data and the runs of the UCI study: networks whose particles predict rows that they have not seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Float32, Integer

from steinkern.core.types import Key, Points, Scalar
from steinkern.kernels.bandwidth import Median
from steinkern.samplers.sampler import AbstractSampler

from ..data.datasets import Regression, fingerprint
from ..methods import Setting, build, cosine, numbers_of
from ..models import NetworkPrior, RegressionNetwork, network_curvature, network_posterior
from ..training import compile_trials, measured_run

NUM_PARTICLES = 10
NOISE_SPREAD = 0.3
HIDDEN = (50, 50)
CURVATURE = {"decay": 0.95, "refresh_every": 10, "measure_every": 5}
_NUMBERS = ("step_size", "damping", "noise_rate")


@dataclass(frozen=True, eq=False)
class Task:
    """A dataset ready to run: one table for all splits, standardised on the way by each split's training rows."""

    name: str
    features: Float32[np.ndarray, "rows columns"]
    targets: Float32[np.ndarray, " rows"]
    unit: float
    """The target's own unit: targets here are in units of it."""
    train_rows: Integer[np.ndarray, "trials train"]
    test_rows: Integer[np.ndarray, "trials test"]
    hidden: tuple[int, ...] = HIDDEN

    @property
    def num_train(self) -> int:
        """The number of training rows."""
        return self.train_rows.shape[1]

    @property
    def batch_size(self) -> int:
        """Examples a step."""
        return min(1000 if self.name == "year" else 100, self.num_train)

    def protocol(self) -> dict[str, Any]:
        """The inputs of a run besides its setting."""
        sizes = {"particles": NUM_PARTICLES, "batch_size": self.batch_size, "hidden": list(self.hidden)}
        data = fingerprint(self.features, self.targets, np.array(self.unit), self.train_rows, self.test_rows)
        return {"trials": len(self.train_rows), "data": data, **sizes, "noise_spread": NOISE_SPREAD, **CURVATURE}

    def checkpoints(self, epochs: int, number: int = 1) -> list[int]:
        """Up to `number` increasing counts of steps, the last of them that of so many passes over the data."""
        steps = math.ceil(epochs * self.num_train / self.batch_size)
        return sorted({math.ceil(steps * (i + 1) / number) for i in range(number)})

    @cached_property
    def held_out(self) -> "Task":
        """The task on which settings are chosen: the last tenth of the training rows in place of the test rows.

        The rows of a split are in random order; those of year are not, and neighbours share an artist, as in its test.
        """
        train, test = np.split(self.train_rows, [round(0.9 * self.num_train)], axis=1)
        return replace(self, train_rows=train, test_rows=test)


def prepare(data: Regression, num_trials: int | None = None, hidden: Sequence[int] = HIDDEN) -> Task:
    """The reported task: the standard splits, or the first `num_trials` of them; five trials of year's one split."""
    # One affine map for the whole table keeps the digits in float32; each split's own standardisation follows.
    features = (data.features - data.features.mean(0)) / _spread(data.features)
    unit = float(_spread(data.targets[:, None])[0])
    targets = (data.targets - data.targets.mean()) / unit
    times = 5 if data.name == "year" else 1
    train_rows, test_rows = (np.repeat(rows, times, axis=0)[:num_trials] for rows in (data.train_rows, data.test_rows))
    return Task(
        data.name, features.astype(np.float32), targets.astype(np.float32), unit, train_rows, test_rows, tuple(hidden)
    )


def _spread(table: np.ndarray) -> np.ndarray:
    """Standard deviations of the columns; 1 where a column is constant."""
    spread = table.std(0)
    return np.where(spread > 0, spread, 1.0)


def scales_of(task: Task) -> tuple[Array, ...]:
    """Means and standard deviations of the features and of the target in every trial's training rows."""

    def one(rows: np.ndarray) -> tuple[Any, ...]:
        features, targets = task.features[rows].astype(np.float64), task.targets[rows].astype(np.float64)
        return features.mean(0), _spread(features), targets.mean(), _spread(targets[:, None])[0]

    stacked = [np.stack(parts).astype(np.float32) for parts in zip(*map(one, task.train_rows), strict=True)]
    return tuple(map(jnp.asarray, stacked))


class Scores(NamedTuple):
    """How well the particles predict rows they have not seen, in the target's own units."""

    rmse: Array
    log_likelihood: Array


def predictive_scores(
    means: Float[Array, "n rows"], log_variances: Float[Array, "n rows"], y: Float[Array, " rows"], unit: Scalar
) -> Scores:
    """RMSE of the particles' mean prediction, and the mean log density of their mixture of normals.

    Args:
        means: every particle's prediction, in units of `unit`.
        log_variances: of its noise, in units of unit².
        y: the truth, in the same units.
        unit: one unit in the target's own units.
    """
    errors = jnp.mean(means, axis=0) - y
    densities = -0.5 * ((means - y[None, :]) ** 2 * jnp.exp(-log_variances) + log_variances + math.log(2 * math.pi))
    mixed = jax.nn.logsumexp(densities, axis=0) - math.log(means.shape[0])
    return Scores(unit * jnp.sqrt(jnp.mean(errors**2)), jnp.mean(mixed) - jnp.log(unit))


def sampler(method: str, setting: Setting, num_data: int, num_steps: Any) -> AbstractSampler:
    """The sampler of a setting. All numbers may be traced."""
    schedule = cosine(setting["step_size"], num_steps)
    return build(
        method,
        optax.adam(schedule),
        lambda count: schedule(count) / num_data,
        network_curvature(),
        metric={"per_block": True, "damping": setting["damping"], **CURVATURE},
        mixture={"temperature": Median(), "weighting": "euclidean"},
    )


def run_trials(method: str, settings: Sequence[Setting], task: Task, checkpoints: Sequence[int], seed: int) -> Scores:
    """All trials of settings that differ in their numbers, at once: scores (settings, trials, checkpoints)."""
    rows = jnp.asarray(task.train_rows.astype(np.int32)), jnp.asarray(task.test_rows.astype(np.int32))
    trials = (jnp.arange(len(task.train_rows)), scales_of(task), *rows)
    shared = [jnp.asarray(values) for values in (task.features, task.targets, checkpoints, seed)]
    run = _program(method, settings[0]["damping"] is not None, task)
    return jax.tree.map(np.asarray, run(numbers_of(settings, _NUMBERS, jnp.float32), trials, shared))


@lru_cache(maxsize=1)
def _program(method: str, damped: bool, task: Task) -> Callable[..., Scores]:
    """The compiled run, for any numbers, checkpoints and seed."""
    setting = {"step_size": 1.0, "damping": 1.0 if damped else None, "noise_rate": 1.0}
    return compile_trials(partial(_trial, method, task), setting, _NUMBERS)


def _trial(method: str, task: Task, setting: Setting, trial: Any, shared: Any) -> Scores:
    """One run on one split: the scores at every checkpoint."""
    number, scale, train_rows, test_rows = trial
    center, spread, target_center, target_spread = scale
    features, targets, checkpoints, seed = shared
    start_key, run_key = jr.split(jr.fold_in(jr.key(seed), number))
    sizes = (features.shape[1], *task.hidden, 1)
    draw = partial(RegressionNetwork.draw, sizes=sizes, spread=NOISE_SPREAD, dtype=features.dtype)
    networks = jax.vmap(draw)(jr.split(start_key, NUM_PARTICLES))
    prior = NetworkPrior(rate=setting["noise_rate"])
    target = network_posterior(task.num_train, prior).bind(jax.tree.map(lambda leaf: leaf[0], networks))
    points = jax.vmap(target.space.unconstrain)(networks)

    def examples(rows: Array) -> tuple[Array, Array]:
        x = (features[rows] - center[None, :]) / spread[None, :]
        return x, (targets[rows] - target_center) / target_spread

    def batch(batch_key: Key) -> tuple[Array, Array]:
        return examples(train_rows[jr.randint(batch_key, (task.batch_size,), 0, task.num_train)])

    def measure(particles: Points) -> Scores:
        x, y = examples(test_rows)
        outputs = jax.vmap(lambda particle: jax.vmap(target.constrain(particle))(x))(particles)
        return predictive_scores(outputs[..., 0], outputs[..., 1], y, target_spread * task.unit)

    moves = sampler(method, setting, task.num_train, checkpoints[-1])
    return measured_run(run_key, moves, target, points, batch, checkpoints, measure)
