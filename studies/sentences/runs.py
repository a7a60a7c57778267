"""The data and the runs of the sentence study: a recurrent network that all particles share, and their output weights.

Batches of 50 come from one bucket of lengths at a time, drawn in proportion to its size, and from its sentences with
replacement. At every check the particles predict the validation and the test rows. Early stopping keeps the check of
the highest validation log-likelihood, for two readouts: "now", the particles of that check, and "averaged", a running
average of the predictive probabilities over the checks up to it (the released code of the paper averages over its
checks too).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Integer

from steinkern.core.particles import split
from steinkern.core.types import Key, Points, Scalar
from steinkern.kernels.bandwidth import Median
from steinkern.samplers.half_bayesian import half_bayesian
from steinkern.samplers.sampler import AbstractSampler, target_at
from steinkern.targets.curvature import Fisher
from steinkern.targets.kfac import KFAC
from steinkern.targets.likelihood import Categorical
from steinkern.targets.target import BoundTarget, Posterior

from ..data.datasets import fingerprint
from ..data.text import Part, Sentences, buckets_for, cross_validation, in_buckets
from ..methods import Setting, build
from . import cells, model
from .model import UNITS, Example

NUM_PARTICLES = 10
BATCH_SIZE = 50
EPOCHS = 12
"""At most; early stopping chooses."""
FOLDS = 10
CHECKS_PER_EPOCH = 3
DROPOUT = 0.5
NETWORK_RATE = 0.003
WORD_RATE = 0.1
"""The word vectors' step size over that of the other shared parameters."""
AVERAGING = 0.9
"""ρ of the running average over checks, ρ_t = min(1 − 1/t, ρ)."""
READOUTS = ("now", "averaged")
_CURVATURE = {"decay": 0.95, "refresh_every": 10, "measure_every": 5}
_BINS = 15


@dataclass(frozen=True)
class Task:
    """A dataset ready to run: its sentences, their word vectors, and the rows of every fold by bucket of length."""

    sentences: Sentences
    vectors: Float[np.ndarray, "vocabulary width"]
    fold_of: Integer[np.ndarray, " rows"]
    folds: tuple[int, ...]
    buckets: tuple[int, ...]
    shares: Float[np.ndarray, " buckets"]
    """Of every bucket among the training rows of all folds."""
    num_train: int
    """The number of training rows: of the smallest fold, from which others differ by one at most."""
    train: Part
    validation: Part
    test: Part
    epochs: int = EPOCHS
    tables: Sequence[tuple[str, int]] = ()
    """The tables that the vectors are from, and how many of the words each has."""
    all_weights: bool = False
    """Whether the weights of the recurrent network are particles too."""

    @property
    def batch_size(self) -> int:
        """Examples a step."""
        return min(BATCH_SIZE, self.num_train)

    @property
    def network(self) -> ModuleType:
        """The module with the network: its particles, first weights, prior and logits."""
        return cells if self.all_weights else model

    @property
    def schedule(self) -> tuple[int, int]:
        """The number of checks, and of steps between them."""
        per_epoch = math.ceil(self.num_train / self.batch_size)
        steps = math.ceil(per_epoch / CHECKS_PER_EPOCH)
        return max(1, round(self.epochs * per_epoch / steps)), steps

    def protocol(self) -> dict[str, Any]:
        """What a run does beyond its setting."""
        arrays = (self.sentences.tokens, self.sentences.lengths, self.sentences.labels, self.vectors, self.fold_of)
        return {
            "data": fingerprint(*arrays),
            "folds": list(self.folds),
            "buckets": list(self.buckets),
            "particles": NUM_PARTICLES,
            "batch_size": self.batch_size,
            "units": UNITS,
            "dropout": DROPOUT,
            "network_rate": NETWORK_RATE,
            "word_rate": WORD_RATE,
            "checks_per_epoch": CHECKS_PER_EPOCH,
            "averaging": AVERAGING,
            **_CURVATURE,
            **({"all_weights": True} if self.all_weights else {}),
        }


def prepare(
    sentences: Sentences, vectors: Float[np.ndarray, "vocabulary width"], folds: Sequence[int], **more: Any
) -> Task:
    """The task on some of the ten folds; a tenth of every fold's training rows are for validation."""
    fold_of = cross_validation(len(sentences.labels), FOLDS)
    rest = [np.random.RandomState(1000 + fold).permutation(np.flatnonzero(fold_of != fold)) for fold in range(FOLDS)]
    train = [rows[: round(0.9 * len(rows))] for rows in rest]
    validation = [rows[round(0.9 * len(rows)) :] for rows in rest]
    test = [np.flatnonzero(fold_of == fold) for fold in range(FOLDS)]
    # From a thousand sentences on a program for each of several lengths is worth compiling.
    buckets = buckets_for(sentences.lengths, (0.5, 0.85, 1.0) if len(fold_of) >= 1000 else (1.0,))
    while len(buckets) > 1 and not all(
        np.all(counts) for counts in in_buckets(train, sentences.lengths, buckets).counts
    ):
        del buckets[0]  # too few sentences for a bucket of their own in every fold
    # What all folds share is the same whichever of them run.
    sizes = np.sum(in_buckets(train, sentences.lengths, buckets).counts, axis=1)
    least = min(len(rows) for rows in train)
    parts = [
        in_buckets([rows[fold] for fold in folds], sentences.lengths, buckets) for rows in (train, validation, test)
    ]
    common = (tuple(buckets), sizes / sizes.sum(), least)
    return Task(sentences, vectors, fold_of, tuple(folds), *common, parts[0], parts[1], parts[2], **more)


def sampler(method: str, step_size: Any, damping: Any, num_data: int, all_weights: bool = False) -> AbstractSampler:
    """The sampler of a method. Step size and damping may be traced.

    The exact Fisher information of the output weights is a dense matrix; that of all weights is KFAC's, with a kernel
    for each of its blocks.
    """
    size = jnp.asarray(step_size, jnp.float32)
    words = optax.adam(WORD_RATE * NETWORK_RATE)
    # A name in place of every array: optax takes a tree of labels of the same structure.
    labels = model.Network(*cast(Any, ["words", "rest", "rest", "rest", "rest", None]))
    shared = words if all_weights else optax.partition({"words": words, "rest": optax.adam(NETWORK_RATE)}, labels)
    particles = build(
        method,
        optax.adam(size),
        size / num_data,
        KFAC(partial(cells.logits, dropout=DROPOUT), Categorical())
        if all_weights
        else Fisher(partial(model.logits, dropout=DROPOUT), Categorical()),
        metric={"damping": damping, "per_block": all_weights, **_CURVATURE},
        mixture={"temperature": Median(), "weighting": "euclidean" if all_weights else "no_determinant"},
    )
    return half_bayesian(particles, shared)


class Scores(NamedTuple):
    """How well the averaged probabilities of the particles classify rows they have not seen."""

    error: Array
    """The share of rows whose more probable class is not theirs."""
    log_likelihood: Array
    ece: Array
    """Expected calibration error: the mean distance, over 15 bins of confidence, between confidence and accuracy."""


class Stopped(NamedTuple):
    """A run at the check that early stopping chose."""

    check: np.ndarray
    validation: np.ndarray
    """The validation log-likelihood, by which settings are chosen."""
    test: Scores


class Measured(NamedTuple):
    """The scores of a check, of both readouts on both parts."""

    validation_now: Scores
    test_now: Scores
    validation_averaged: Scores
    test_averaged: Scores

    def stop_early(self, readout: str) -> Stopped:
        """What early stopping leaves of every run and fold: the check of the highest validation log-likelihood."""
        validation, test = (getattr(self, f"{part}_{readout}") for part in ("validation", "test"))
        likelihoods = np.asarray(validation.log_likelihood)
        best = np.argmax(np.where(np.isfinite(likelihoods), likelihoods, -np.inf), axis=-1)

        def at_best(values: Any) -> Any:
            return np.take_along_axis(np.asarray(values), best[..., None], axis=-1)[..., 0]

        return Stopped(best, at_best(likelihoods), jax.tree.map(at_best, test))


def predictive_scores(
    probabilities: Float[Array, "rows classes"], labels: Integer[Array, " rows"], weights: Float[Array, " rows"]
) -> Scores:
    """The scores of predictive probabilities; rows of weight 0 are padding."""
    total = jnp.sum(weights)
    of_label = jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0]
    likelihood = jnp.sum(weights * jnp.log(jnp.maximum(of_label, jnp.finfo(of_label.dtype).tiny))) / total
    confidence = jnp.max(probabilities, axis=1)
    right = (jnp.argmax(probabilities, axis=1).astype(labels.dtype) == labels).astype(of_label.dtype)
    bins = jnp.clip((confidence * _BINS).astype(jnp.int32), 0, _BINS - 1)
    gaps = jax.ops.segment_sum(weights * (confidence - right), bins, _BINS)
    return Scores(1 - jnp.sum(weights * right) / total, likelihood, jnp.sum(jnp.abs(gaps)) / total)


Arrays: TypeAlias = tuple[Example, Array, Array]
"""What all folds of a task share, on the device: its sentences, their word vectors, and the shares of the buckets."""
Buckets: TypeAlias = Sequence[tuple[Array, Array]]
"""Of every bucket its rows, and how many of them count."""


def trial(key: Key, method: str, step_size: Any, damping: Any, task: Task, arrays: Arrays, parts: Any) -> Measured:
    """One run on one fold: the scores at every check. All runs share the order of the buckets."""
    sentences, vectors, shares = arrays
    train, *scored = parts
    checks, steps = task.schedule
    start_key, run_key = jr.split(key)
    target, points = first_particles(start_key, method, task, vectors)
    moves = sampler(method, step_size, damping, task.num_train, task.all_weights)

    def batch(bucket: int, batch_key: Key) -> Example:
        rows_key, dropout_key = jr.split(batch_key)
        rows, count = train[bucket]
        chosen = rows[jr.randint(rows_key, (task.batch_size,), 0, count)]
        return _take(sentences, chosen, task.buckets[bucket])._replace(key=jr.split(dropout_key, task.batch_size))

    def step(_: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, count = carry
        batch_key, sampler_key = jr.split(jr.fold_in(run_key, count))

        def within(bucket: int) -> Any:
            return moves.step(sampler_key, state, target, batch(bucket, batch_key))[0]

        which = jr.categorical(jr.fold_in(jr.key(1), count), jnp.log(shares))
        return jax.lax.switch(which, [partial(within, bucket) for bucket in range(len(task.buckets))]), count + 1

    def predict(state: Any, part: Buckets) -> Array:
        """The particles' mean probabilities of all rows of a part, bucket after bucket."""
        buckets = [_take(sentences, rows, length) for (rows, _), length in zip(part, task.buckets, strict=True)]
        return jnp.concatenate([_mean_probabilities(task, target, state, examples) for examples in buckets])

    def check(carry: tuple[Any, Array, Any], turn: Array) -> tuple[Any, Measured]:
        state, count, means = carry
        state, count = jax.lax.fori_loop(0, steps, step, (state, count))
        now = [predict(state, part) for part in scored]
        rate = jnp.minimum(1 - 1 / turn, AVERAGING)
        means = jax.tree.map(lambda mean, new: rate * mean + (1 - rate) * new, means, now)
        truth = [_labels_and_weights(sentences, part, vectors.dtype) for part in scored]
        scores = [predictive_scores(each, *true) for each, true in zip([*now, *means], truth * 2, strict=True)]
        return (state, count, means), Measured(*scores)

    state = moves.init(target, points, batch(0, run_key))  # looks at shapes alone
    means = [jnp.zeros_like(predict(state, part)) for part in scored]
    turns = jnp.arange(1, checks + 1, dtype=vectors.dtype)
    return jax.lax.scan(check, (state, jnp.zeros((), jnp.int32), means), turns)[1]


def first_particles(key: Key, method: str, task: Task, vectors: Array) -> tuple[BoundTarget, Points]:
    """The posterior, and random first particles; a single one for the point estimate."""
    network = task.network
    first = network.draw(key, vectors, 1 if method == "point" else NUM_PARTICLES)
    particles, shared = split(first, network.PARTICLES)

    def log_likelihood(one: Any, example: Example) -> Scalar:
        return Categorical().log_prob(network.logits(one, example, DROPOUT), example.label)

    posterior = Posterior(network.log_prior, log_likelihood, task.num_train, shared=shared)
    target = posterior.bind(jax.tree.map(lambda leaf: leaf[0], particles))
    return target, jax.vmap(target.space.unconstrain)(particles)


def _take(sentences: Example, rows: Array, length: int) -> Example:
    """Some sentences, without dropout, cut to a length."""
    return Example(sentences.tokens[rows, :length], sentences.length[rows], sentences.label[rows], None)


def _mean_probabilities(task: Task, target: BoundTarget, state: Any, examples: Example) -> Float[Array, "rows classes"]:
    """Over the particles; where they share the recurrent network its features are computed once."""
    if task.all_weights:
        constrain = target_at(state, target).constrain
        outputs = jax.vmap(lambda one: jax.vmap(partial(cells.logits, constrain(one)))(examples))(state.points)
        return jnp.mean(jax.nn.softmax(outputs), axis=0)
    inputs = jax.vmap(partial(model.features, state.shared))(examples)
    weights = state.points.reshape(state.points.shape[0], -1, inputs.shape[1])
    return jnp.mean(jax.nn.softmax(jnp.einsum("ncw,rw->nrc", weights, inputs)), axis=0)


def _labels_and_weights(sentences: Example, part: Buckets, dtype: jnp.dtype) -> tuple[Array, Array]:
    labels = [sentences.label[rows] for rows, _ in part]
    weights = [(jnp.arange(len(rows), dtype=count.dtype) < count).astype(dtype) for rows, count in part]
    return jnp.concatenate(labels), jnp.concatenate(weights)


def run_folds(method: str, settings: Sequence[Setting], task: Task) -> tuple[list[int], Measured]:
    """All folds of several runs under one `vmap`: the checks in steps, and scores (runs, folds, checks).

    Args:
        method: which sampler.
        settings: of every run, with a value for every fold of the task.
        task: sentences, vectors, folds and epochs.
    """

    @jax.jit
    def run(sizes: Array, dampings: Array, folds: Array, arrays: Arrays, parts: Any) -> Measured:
        def one(size: Array, damping: Array, fold: Array, own_parts: Any) -> Measured:
            return trial(jr.fold_in(jr.key(0), fold), method, size, damping, task, arrays, own_parts)

        return jax.vmap(jax.vmap(one), (0, 0, None, None))(sizes, dampings, folds, parts)

    tokens, lengths, labels = map(jnp.asarray, (task.sentences.tokens, task.sentences.lengths, task.sentences.labels))
    vectors, shares = jnp.asarray(task.vectors), jnp.asarray(task.shares, jnp.float32)
    arrays = Example(tokens, lengths, labels, None), vectors, shares
    parts = [
        [(jnp.asarray(rows), jnp.asarray(count)) for rows, count in zip(part.rows, part.counts, strict=True)]
        for part in (task.train, task.validation, task.test)
    ]
    sizes = jnp.array([setting["step_size"] for setting in settings], jnp.float32)
    unused = (1.0,) * len(task.folds)
    dampings = jnp.array([setting.get("damping", unused) for setting in settings], jnp.float32)
    measured = run(sizes, dampings, jnp.asarray(task.folds), arrays, parts)
    checks, steps = task.schedule
    return [steps * (i + 1) for i in range(checks)], jax.tree.map(np.asarray, measured)
