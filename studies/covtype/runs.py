"""The data and the runs of the Covertype study: logistic regressions whose particles predict rows not seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Float32, Integer

from steinkern.core.types import Key, Points, cast_like
from steinkern.kernels.bandwidth import Median
from steinkern.samplers.sampler import AbstractSampler
from steinkern.targets.curvature import Fisher
from steinkern.targets.likelihood import Bernoulli

from ..data.datasets import Classification, fingerprint
from ..methods import PRECONDITIONED, Setting, build, numbers_of
from ..models import logistic_posterior, logit
from ..training import compile_trials, measured_run

NUM_PARTICLES = 20
BATCH_SIZE = 256
CURVATURE = {"decay": 0.95, "refresh_every": 5}
_NUMBERS = ("step_size", "horizon", "damping")
_SETTINGS_AT_ONCE = 32
"""So many under one `vmap`, the rest in turn: the validation rows' logits are 19 MB a setting, several times over."""


@dataclass(frozen=True)
class Task:
    """The table, and for every trial its partition: a number, and the rows to train, to validate and to test on."""

    partitions: tuple[int, ...]
    features: Float32[np.ndarray, "rows columns"]
    labels: Float32[np.ndarray, " rows"]
    train_rows: Integer[np.ndarray, "trials train"]
    validation_rows: Integer[np.ndarray, "trials validation"]
    test_rows: Integer[np.ndarray, "trials test"]
    checkpoints: tuple[int, ...]
    """The iterations at which a run is scored."""

    def protocol(self) -> dict[str, Any]:
        """The inputs of a run besides its setting."""
        sizes = {"particles": NUM_PARTICLES, "batch_size": BATCH_SIZE}
        data = fingerprint(self.features, self.labels, self.train_rows)
        return {"partitions": list(self.partitions), "data": data, **sizes, **CURVATURE}


def prepare(data: Classification, positive: int, partitions: Sequence[int], checkpoints: Sequence[int]) -> Task:
    """Features scaled to [0, 1] and a column of ones; label `positive` against the rest; a trial a partition.

    Args:
        data: the raw table.
        positive: the label to tell from all others.
        partitions: the seeds of the random partitions, and of the random numbers of the trials on them.
        checkpoints: the iterations at which a run is scored.
    """
    raw = data.features.astype(np.float32)
    low, high = raw.min(0), raw.max(0)
    scaled = (raw - low) / np.where(high > low, high - low, np.float32(1))
    features = np.concatenate([scaled, np.ones((len(raw), 1), np.float32)], axis=1).astype(np.float32)
    labels = (data.labels == positive).astype(np.float32)
    rows = np.stack([np.random.default_rng(seed).permutation(len(labels)).astype(np.int32) for seed in partitions])
    train, validation, test = np.split(rows, [round(0.7 * len(labels)), round(0.8 * len(labels))], axis=1)
    return Task(tuple(partitions), features, labels, train, validation, test, tuple(checkpoints))


class Scores(NamedTuple):
    """How well the particles' mean probability predicts rows they have not seen."""

    accuracy: Array
    log_likelihood: Array


def predictive_scores(logits: Float[Array, "rows n"], labels: Float[Array, " rows"]) -> Scores:
    """Accuracy and mean log probability of the particles' averaged probabilities."""
    number = math.log(logits.shape[1])
    positive = jax.nn.logsumexp(jax.nn.log_sigmoid(logits), axis=1) - number
    negative = jax.nn.logsumexp(jax.nn.log_sigmoid(-logits), axis=1) - number
    right = (positive > negative) == (labels > 0.5)
    return Scores(jnp.mean(right.astype(logits.dtype)), jnp.mean(jnp.where(labels > 0.5, positive, negative)))


def sampler(method: str, setting: Setting, num_data: int) -> AbstractSampler:
    """The sampler of a setting. All numbers may be traced."""
    size = jnp.asarray(setting["step_size"], jnp.float32)
    decays = setting["rule"] == "decay"
    unit = 1 if method in PRECONDITIONED else num_data

    def schedule(count: Any) -> Array:
        now = size / (1 + cast_like(count, size) / cast_like(setting["horizon"], size)) if decays else size
        return now / unit

    if setting["rule"] == "adagrad":
        optimizer = optax.adagrad(size, initial_accumulator_value=0.0)
    else:
        optimizer = optax.scale_by_learning_rate(schedule)
    metric = {"damping": setting.get("damping"), **CURVATURE}
    mixture = {"temperature": Median(), "weighting": "no_determinant"}
    return build(method, optimizer, schedule, Fisher(logit, Bernoulli()), metric=metric, mixture=mixture)


def run_trials(
    method: str,
    settings: Sequence[Setting],
    task: Task,
    scored_rows: Integer[np.ndarray, "trials scored"],
    checkpoints: Sequence[int],
    seed: int,
) -> Scores:
    """All trials of settings that differ in their numbers, at once: scores (settings, trials, checkpoints)."""
    run = compile_trials(partial(_trial, method, checkpoints, seed), settings[0], _NUMBERS, _SETTINGS_AT_ONCE)
    trials = [jnp.asarray(values) for values in (task.partitions, task.train_rows, scored_rows)]
    shared = [jnp.asarray(values) for values in (task.features, task.labels)]
    return jax.tree.map(np.asarray, run(numbers_of(settings, _NUMBERS, jnp.float32), trials, shared))


def _trial(method: str, checkpoints: Sequence[int], seed: int, setting: Setting, trial: Any, shared: Any) -> Scores:
    """One run on one partition: the scores at every checkpoint."""
    partition, train_rows, scored_rows = trial
    features, labels = shared
    number = train_rows.shape[0]
    start_key, run_key = jr.split(jr.fold_in(jr.key(seed), partition))
    points = jr.normal(start_key, (NUM_PARTICLES, features.shape[1]), features.dtype)
    target = logistic_posterior(number).bind(points[0])

    def batch(batch_key: Key) -> tuple[Array, Array]:
        rows = train_rows[jr.randint(batch_key, (min(BATCH_SIZE, number),), 0, number)]
        return features[rows], labels[rows]

    def measure(particles: Points) -> Scores:
        logits = jnp.matmul(features[scored_rows], particles.T, precision="highest")
        return predictive_scores(logits, labels[scored_rows])

    return measured_run(run_key, sampler(method, setting, number), target, points, batch, checkpoints, measure)
