"""Sentence classification with half-Bayesian recurrent networks: the runs themselves.

Word vectors and a bidirectional GRU with 50 units each way are shared and trained by Adam; the output weights are ten
particles with an N(0, 1) prior (one, for the point estimate). Batches of 50 come from one bucket of lengths at a time,
drawn in proportion to its size, and from its sentences with replacement. The matrix variants use the exact softmax
Fisher information of the output weights in a running average; the mixture's weights leave the determinants out and
widen with the median bandwidth: Eq. (17) itself is one-hot here. Particles move by Adam, those of the Langevin chains
by plain steps of step size / N.

At every check the particles predict the validation and the test rows. Early stopping keeps the check of the highest
validation log-likelihood, for two readouts: "now", the particles of that check, and "averaged", a running average of
the predictive probabilities over the checks up to it (the released code of the paper averages over its checks too).

A method's step size, and the damping of the metric where there is one, are chosen for every fold by itself, on the
validation part of its training rows; no fold's choice sees its test rows. All methods have the same grid of step sizes,
the matrix variants three dampings for each. Dropout, the network's step sizes and the readout's average were settled
with the point estimate on validation rows of three folds, which are test rows of other folds.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Integer

from ..core.particles import split
from ..core.types import Key, Points, check_choice, check_positive
from ..kernels.bandwidth import Median
from ..samplers.ensemble import ensemble
from ..samplers.half_bayesian import half_bayesian
from ..samplers.langevin import psgld, sgld
from ..samplers.sampler import AbstractSampler
from ..samplers.stein import matrix_svgd, svgd
from ..targets.curvature import Fisher
from ..targets.likelihood import Categorical
from ..targets.target import Posterior
from .data.datasets import fingerprint
from .data.text import Part, Sentences, bucketed, buckets_for, cross_validation
from .sentence_model import UNITS, Example, Network, draw, features, log_prior, logits

Method: TypeAlias = Literal["sgld", "psgld", "vanilla", "average", "mixture", "point"]
METHODS: tuple[Method, ...] = ("sgld", "psgld", "vanilla", "average", "mixture", "point")
PRECONDITIONED = ("average", "mixture")
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
STEP_SIZES = (1e-4, 1e-3, 1e-2, 1e-1)
"""The particles' step sizes that are searched, for every method."""
DAMPINGS = (0.01, 0.1, 1.0)
"""The dampings of the metric that are searched, where there is one."""
AVERAGING = 0.9
"""ρ of the running average over checks, ρ_t = min(1 − 1/t, ρ)."""
_CURVATURE = {"decay": 0.95, "refresh_every": 10, "measure_every": 5}
_BINS = 15
_MANY = 1000  # sentences, from which on a program for each of several lengths is worth compiling


@dataclass(frozen=True)
class Setting:
    """A method's choices, one for every fold: the particles' step size, and the metric's damping where there is one."""

    step_size: Sequence[float]
    damping: Sequence[float] | None = None


def checked(setting: Setting, method: str) -> Setting:
    """The setting itself, if its numbers are possible ones of the method."""
    if (setting.damping is not None) != (method in PRECONDITIONED):
        raise ValueError(f"{method} has {'a' if method in PRECONDITIONED else 'no'} damping")
    for name, values in asdict(setting).items():
        if name == "step_size" or values is not None:
            check_positive(name, values)
            if np.shape(values) != (FOLDS,):
                raise ValueError(f"there must be {FOLDS} of {name}, one a fold, got {values}")
    return setting


def grid(method: Method) -> list[list[Setting]]:
    """The settings that are searched: for every damping all step sizes, the same on all folds."""
    dampings = [(damping,) * FOLDS for damping in DAMPINGS] if method in PRECONDITIONED else [None]
    return [[Setting((size,) * FOLDS, damping) for size in STEP_SIZES] for damping in dampings]


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

    def protocol(self) -> dict[str, Any]:
        """What a run does beyond its setting: a result is that of another run where any of this is another."""
        own = self.sentences
        sizes = {"particles": NUM_PARTICLES, "batch_size": min(BATCH_SIZE, self.num_train), "units": UNITS}
        network = {"dropout": DROPOUT, "network_rate": NETWORK_RATE, "word_rate": WORD_RATE}
        readout = {"checks_per_epoch": CHECKS_PER_EPOCH, "averaging": AVERAGING}
        data = fingerprint(own.tokens, own.lengths, own.labels, self.vectors, self.fold_of)
        return {
            "data": data, "folds": list(self.folds), "buckets": list(self.buckets), **sizes, **network, **readout,
            **_CURVATURE,
        }  # fmt: skip


def prepare(sentences: Sentences, vectors: Float[np.ndarray, "vocabulary width"], folds: Sequence[int]) -> Task:
    """The task on some of the ten folds; a tenth of every fold's training rows are for validation."""
    fold_of = cross_validation(len(sentences.labels), FOLDS)
    train, validation, test = [], [], []
    for fold in range(FOLDS):
        rest = np.random.RandomState(1000 + fold).permutation(np.flatnonzero(fold_of != fold))
        kept = round(0.9 * len(rest))
        train.append(rest[:kept])
        validation.append(rest[kept:])
        test.append(np.flatnonzero(fold_of == fold))
    buckets = buckets_for(sentences.lengths, (0.5, 0.85, 1.0) if len(fold_of) >= _MANY else (1.0,))
    while len(buckets) > 1 and not all(np.all(counts) for counts in bucketed(train, sentences.lengths, buckets).counts):
        del buckets[0]  # too few sentences for a bucket of their own in every fold
    # What all folds share is the same whichever of them run.
    sizes = np.sum(bucketed(train, sentences.lengths, buckets).counts, axis=1)
    least = min(len(rows) for rows in train)
    parts = (bucketed([rows[fold] for fold in folds], sentences.lengths, buckets) for rows in (train, validation, test))
    return Task(sentences, vectors, fold_of, tuple(folds), tuple(buckets), sizes / sizes.sum(), least, *parts)


def build(method: Method, step_size: Any, damping: Any, num_data: int) -> AbstractSampler:
    """The sampler of a method. Step size and damping may be traced, so that many of them run at once."""
    check_choice("method", method, METHODS)
    check_positive("step_size", step_size)
    check_positive("damping", damping)
    rest = optax.adam(NETWORK_RATE)
    # A name in place of every array: optax takes a tree of labels of the same structure.
    labels = Network(*cast(Any, ["words", "rest", "rest", "rest", "rest", None]))
    shared = optax.partition({"words": optax.adam(WORD_RATE * NETWORK_RATE), "rest": rest}, labels)
    return half_bayesian(_particle_sampler(method, jnp.asarray(step_size, jnp.float32), damping, num_data), shared)


def _particle_sampler(method: Method, size: Array, damping: Any, num_data: int) -> AbstractSampler:
    if method in ("sgld", "psgld"):
        return (sgld if method == "sgld" else psgld)(size / num_data)
    optimiser = optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(size))
    if method == "point":
        return ensemble(optimiser)
    if method == "vanilla":
        return svgd(optimiser=optimiser)
    curvature = Fisher(partial(logits, dropout=DROPOUT), Categorical())
    settings: dict[str, Any] = {"curvature": curvature, "optimiser": optimiser, "damping": damping, **_CURVATURE}
    if method == "average":
        return matrix_svgd("average", **settings)
    return matrix_svgd("mixture", temperature=Median(), weighting="no_determinant", **settings)


class Scores(NamedTuple):
    """How well the averaged probabilities of the particles classify rows they have not seen."""

    error: Array
    """The share of rows whose more probable class is not theirs."""
    log_likelihood: Array
    ece: Array
    """Expected calibration error: the mean distance, over 15 bins of confidence, between confidence and accuracy."""


Readout: TypeAlias = Literal["now", "averaged"]
READOUTS: tuple[Readout, ...] = ("now", "averaged")


class Stopped(NamedTuple):
    """A run at the check that early stopping chose."""

    check: np.ndarray
    validation: np.ndarray
    """The validation log-likelihood, by which settings are chosen."""
    test: Scores


class Measured(NamedTuple):
    """The scores of a check, of both readouts on both parts."""

    validation_now: Scores
    validation_averaged: Scores
    test_now: Scores
    test_averaged: Scores


def predictive_scores(
    probabilities: Float[Array, "rows classes"], labels: Integer[Array, " rows"], weights: Float[Array, " rows"]
) -> Scores:
    """The scores of predictive probabilities; rows of weight 0 are padding."""
    total = jnp.sum(weights)
    own = jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0]
    likelihood = jnp.sum(weights * jnp.log(jnp.maximum(own, jnp.finfo(own.dtype).tiny))) / total
    confidence = jnp.max(probabilities, axis=1)
    right = (jnp.argmax(probabilities, axis=1).astype(labels.dtype) == labels).astype(own.dtype)
    bins = jnp.clip((confidence * _BINS).astype(jnp.int32), 0, _BINS - 1)
    gaps = jax.ops.segment_sum(weights * (confidence - right), bins, _BINS)
    return Scores(1 - jnp.sum(weights * right) / total, likelihood, jnp.sum(jnp.abs(gaps)) / total)


class Arrays(NamedTuple):
    """What all folds of a task have in common, on the device."""

    tokens: Array
    lengths: Array
    labels: Array
    vectors: Array
    shares: Array


Buckets: TypeAlias = Sequence[tuple[Array, Array]]


def trial(
    key: Key,
    schedule: Key,
    method: Method,
    step_size: Any,
    damping: Any,
    task: Task,
    arrays: Arrays,
    train: Buckets,
    validation: Buckets,
    test: Buckets,
    checks: int,
    steps: int,
) -> Measured:
    """One run on one fold: the scores at every check, `steps` steps apart. All runs share `schedule`, the buckets."""
    number = task.num_train
    start_key, run_key = jr.split(key)
    network = draw(start_key, arrays.vectors, 1 if method == "point" else NUM_PARTICLES)
    particles, shared = split(network, "output")
    target = Posterior(
        log_prior, lambda net, example: Categorical().log_prob(logits(net, example, DROPOUT), example.label), number,
        shared=shared,
    ).bind(jax.tree.map(lambda leaf: leaf[0], particles))  # fmt: skip
    points = jax.vmap(target.bound_space.unconstrain)(particles)
    sampler = build(method, step_size, damping, number)
    batch_size = min(BATCH_SIZE, number)

    def batch(bucket: int, batch_key: Key) -> Example:
        rows_key, dropout_key = jr.split(batch_key)
        rows, count = train[bucket]
        chosen = rows[jr.randint(rows_key, (batch_size,), 0, count)]
        tokens = arrays.tokens[chosen, : task.buckets[bucket]]
        return Example(tokens, arrays.lengths[chosen], arrays.labels[chosen], jr.split(dropout_key, batch_size))

    def step(_: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, count = carry
        batch_key, sampler_key = jr.split(jr.fold_in(run_key, count))

        def within(bucket: int) -> Any:
            return sampler.step(sampler_key, state, target, batch(bucket, batch_key))[0]

        which = jr.categorical(jr.fold_in(schedule, count), jnp.log(arrays.shares))
        return jax.lax.switch(which, [partial(within, bucket) for bucket in range(len(task.buckets))]), count + 1

    def predict(state: Any, part: Buckets) -> Array:
        """The particles' mean probabilities of all rows of a part, bucket after bucket."""
        pieces = []
        for (rows, _), length in zip(part, task.buckets, strict=True):
            some = Example(arrays.tokens[rows, :length], arrays.lengths[rows], arrays.labels[rows], None)
            seen = jax.vmap(lambda example: features(state.shared, example))(some)
            pieces.append(_probabilities(state.points, seen))
        return jnp.concatenate(pieces)

    def check(carry: tuple[Any, Array, Any], turn: Array) -> tuple[Any, Measured]:
        state, count, means = carry
        state, count = jax.lax.fori_loop(0, steps, step, (state, count))
        found = tuple(predict(state, part) for part in (validation, test))
        rate = jnp.minimum(1 - 1 / turn, AVERAGING)
        means = jax.tree.map(lambda mean, new: rate * mean + (1 - rate) * new, means, found)
        scored = [
            predictive_scores(probabilities, *_labels_and_weights(arrays, part))
            for probabilities, part in zip((*found, *means), (validation, test) * 2, strict=True)
        ]
        measured = Measured(scored[0], scored[2], scored[1], scored[3])
        return (state, count, means), measured

    state = sampler.init(target, points, batch(0, run_key))  # looks at shapes alone
    means = tuple(jnp.zeros_like(predict(state, part)) for part in (validation, test))
    turns = jnp.arange(1, checks + 1, dtype=arrays.vectors.dtype)
    return jax.lax.scan(check, (state, jnp.zeros((), jnp.int32), means), turns)[1]


def _probabilities(points: Points, seen: Float[Array, "rows width"]) -> Float[Array, "rows classes"]:
    outputs = points.reshape(points.shape[0], -1, seen.shape[1])
    return jnp.mean(jax.nn.softmax(jnp.einsum("ncw,rw->nrc", outputs, seen)), axis=0)


def _labels_and_weights(arrays: Arrays, part: Buckets) -> tuple[Array, Array]:
    labels = [arrays.labels[rows] for rows, _ in part]
    weights = [(jnp.arange(len(rows), dtype=count.dtype) < count).astype(arrays.vectors.dtype) for rows, count in part]
    return jnp.concatenate(labels), jnp.concatenate(weights)


def run_folds(
    method: Method, settings: Sequence[Setting], task: Task, epochs: int | None = None
) -> tuple[list[int], Measured]:
    """All folds of several runs under one `vmap`: the checks in steps, and scores (runs, folds, checks).

    Args:
        method: which sampler.
        settings: of every run, with a value for every fold of the task.
        task: sentences, vectors and folds.
        epochs: how long, in passes over the training rows; `EPOCHS` by default.
    """
    per_epoch = math.ceil(task.num_train / min(BATCH_SIZE, task.num_train))
    steps = math.ceil(per_epoch / CHECKS_PER_EPOCH)
    checks = max(1, round((EPOCHS if epochs is None else epochs) * per_epoch / steps))

    @jax.jit
    def run(sizes: Array, dampings: Array, folds: Array, arrays: Arrays, parts: Any) -> Measured:
        def one(size: Array, damping: Array, fold: Array, own_parts: Any) -> Measured:
            key = jr.fold_in(jr.key(0), fold)
            train, validation, test = own_parts
            schedule = jr.key(1)
            return trial(key, schedule, method, size, damping, task, arrays, train, validation, test, checks, steps)

        return jax.vmap(jax.vmap(one), (0, 0, None, None))(sizes, dampings, folds, parts)

    arrays, parts = _on_device(task)
    sizes = jnp.array([setting.step_size for setting in settings], jnp.float32)
    dampings = jnp.array([setting.damping or (1.0,) * len(task.folds) for setting in settings], jnp.float32)
    found = run(sizes, dampings, jnp.asarray(task.folds), arrays, parts)
    return [steps * (i + 1) for i in range(checks)], jax.tree.map(np.asarray, found)


def _on_device(task: Task) -> tuple[Arrays, tuple[Any, Any, Any]]:
    own = task.sentences
    shares = jnp.asarray(task.shares, jnp.float32)
    tokens, lengths, labels, vectors = map(jnp.asarray, (own.tokens, own.lengths, own.labels, task.vectors))

    def part(rows: Part) -> list[tuple[Array, Array]]:
        return [(jnp.asarray(r), jnp.asarray(c)) for r, c in zip(rows.rows, rows.counts, strict=True)]

    return Arrays(tokens, lengths, labels, vectors, shares), (part(task.train), part(task.validation), part(task.test))


def best_check(likelihoods: Float[np.ndarray, "... checks"]) -> Integer[np.ndarray, "..."]:
    """Early stopping: the check of the highest finite validation log-likelihood."""
    return np.argmax(np.where(np.isfinite(likelihoods), likelihoods, -np.inf), axis=-1)


def stopped(method: Method, measured: Measured, readout: Readout | None = None) -> Stopped:
    """What early stopping leaves of every run and fold.

    Args:
        method: whose readout to take by default: "now" for the point estimate, "averaged" for the others.
        measured: from `run_folds`.
        readout: another one.
    """
    chosen = ("now" if method == "point" else "averaged") if readout is None else readout
    validation, test = (getattr(measured, f"{part}_{chosen}") for part in ("validation", "test"))
    best = best_check(np.asarray(validation.log_likelihood))

    def at_best(values: Any) -> Any:
        return np.take_along_axis(np.asarray(values), best[..., None], axis=-1)[..., 0]

    return Stopped(best, at_best(validation.log_likelihood), jax.tree.map(at_best, test))
