"""The data and the runs of the image study: networks whose particles predict images that they have not seen.

Runs of the same method share a program: which seeds and settings run in it are its arguments. All runs of a group go
under one `vmap`, except for those of the mixture of a fully connected network, which fill a GPU by themselves and go in
turn. A lock lets one group at a time have the device, so that its seconds are its own while others compile.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Integer, UInt8

from steinkern.core.particles import split
from steinkern.core.programs import gpu_options
from steinkern.core.types import Key, Points, PyTree, Scalar
from steinkern.kernels.bandwidth import Median
from steinkern.samplers.half_bayesian import half_bayesian
from steinkern.samplers.sampler import AbstractSampler, target_at
from steinkern.targets.kfac import KFAC
from steinkern.targets.likelihood import Categorical
from steinkern.targets.target import BoundTarget, Posterior

from ..data.datasets import fingerprint
from ..data.images import Images
from ..methods import Setting, build, cosine
from .networks import draw
from .scores import Prediction

NUM_PARTICLES = 10
BATCH_SIZE = 128
EPOCHS = 10
SEEDS = 5
CURVATURE = {"damping": 0.1, "decay": 0.95, "refresh_every": 10, "measure_every": 5}
_ROWS_AT_ONCE = 500
"""Of predictions: the hidden layers of so many rows, times the particles and runs, are in memory."""
_DEVICE = Lock()


@dataclass(frozen=True, eq=False)
class Task:
    """Images ready to run: what to train, validate and test on, images of another kind, and how long to run."""

    network: str
    train: Images
    validation: Images
    test: Images
    outside: UInt8[np.ndarray, "others height width"]
    classes: int
    seeds: tuple[int, ...] = tuple(range(SEEDS))
    hidden: tuple[int, ...] | None = None
    """The widths of the fully connected layers, where they are not the network's usual ones."""
    batch_size: int = BATCH_SIZE
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Passes over the training rows, by method."""
    seconds: Mapping[str, float] | None = None
    """By method, of `SEEDS` runs of `EPOCHS` epochs alone on the device, where they were measured apart from the runs;
    NaN where they are not known."""

    def epochs_of(self, method: str) -> int:
        """Passes over the training rows."""
        if method not in self.epochs:
            raise ValueError(f"`--times` must hold the seconds of {method}, to run it for an equal time, got none.")
        return self.epochs[method]

    def steps_of(self, method: str) -> int:
        """Minibatches of a run."""
        return max(1, round(self.epochs_of(method) * len(self.train.labels) / self.batch_size))

    def protocol(self) -> dict[str, Any]:
        """What a run does beyond its setting, its method's epochs and its seeds."""
        parts = (self.train, self.validation, self.test)
        arrays = [array for part in parts for array in (part.images, part.labels)]
        sizes = {"particles": NUM_PARTICLES, "batch_size": self.batch_size}
        hidden = {} if self.hidden is None else {"hidden": list(self.hidden)}
        return {"network": self.network, "data": fingerprint(*arrays, self.outside), **sizes, **hidden, **CURVATURE}


class Shape(NamedTuple):
    """What a program depends on, beside the shapes of its arguments."""

    method: str
    network: str
    image: tuple[int, int]
    classes: int
    hidden: tuple[int, ...] | None
    batch_size: int


class Data(NamedTuple):
    """Images on the device; `scale` has the mean and the standard deviation of a training pixel."""

    train: Array
    labels: Array
    validation: Array
    test: Array
    outside: Array
    scale: Float[Array, "2"]


class Run(NamedTuple):
    """What a run says about validation rows, test rows, and images of another kind."""

    validation: Prediction
    test: Prediction
    outside: Prediction


def runs_at_once(method: str, network: str) -> int:
    """How many runs share one `vmap`."""
    return 1 if method == "mixture" and network == "mlp" else SEEDS


def output(network: Any, example: PyTree) -> Float[Array, " classes"]:
    """The logits of one example (image, label)."""
    return network(example[0])


def log_likelihood(network: Any, example: PyTree) -> Scalar:
    """The log probability of the label of one example (image, label)."""
    return Categorical().log_prob(output(network, example), example[1])


def sampler(method: str, step_size: Any, num_data: int, num_steps: Any) -> AbstractSampler:
    """The sampler of a method. Step size and number of steps may be traced.

    Adam follows the direction of every method, its step size falls to zero along a cosine; Langevin chains have
    plain steps of step size / N on the same schedule. "last_layer" is the mixture of the last layer's weights; the
    layers below are shared by all particles and trained by Adam with the same step size.
    """
    schedule = cosine(step_size, num_steps)
    last_layer = method == "last_layer"
    particles = build(
        "mixture" if last_layer else method,
        optax.adam(schedule),
        lambda count: schedule(count) / num_data,
        KFAC(output, Categorical()),
        metric={"per_block": True, **CURVATURE},
        mixture={"temperature": Median(), "weighting": "euclidean"},
    )
    return half_bayesian(particles, optax.adam(schedule)) if last_layer else particles


def run_group(method: str, settings: Sequence[Setting], seeds: Sequence[int], task: Task) -> tuple[list[Run], float]:
    """Runs with these settings and seeds, and the seconds that they took together without compiling."""
    numbers = jnp.array([[setting["step_size"], setting["prior_scale"]] for setting in settings], jnp.float32)
    pixels = task.train.images.astype(np.float32)
    data = Data(
        train=jnp.asarray(task.train.images),
        labels=jnp.asarray(task.train.labels),
        validation=jnp.asarray(task.validation.images),
        test=jnp.asarray(task.test.images),
        outside=jnp.asarray(task.outside),
        scale=jnp.array([pixels.mean(), pixels.std()], jnp.float32),
    )
    image = (task.train.images.shape[1], task.train.images.shape[2])
    shape = Shape(method, task.network, image, task.classes, task.hidden, task.batch_size)
    arguments = (numbers, jnp.array(seeds, jnp.int32), jnp.asarray(task.steps_of(method), jnp.int32), data)
    program = _program(shape, tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments)))
    with _DEVICE:
        start = time.perf_counter()
        validation, test, outside = jax.block_until_ready(program(*arguments))
        seconds = time.perf_counter() - start
    parts = [tuple(np.asarray(array) for array in part) for part in (validation, test, outside)]
    runs = [Run(*(Prediction(part[0][run], part[1][run]) for part in parts)) for run in range(len(settings))]
    return runs, seconds


@lru_cache(maxsize=32)
def _program(shape: Shape, arguments: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    """The compiled runs, for any settings, seeds and number of steps; `arguments` are their shapes and types."""
    numbers, seeds, steps, *data = (cast(Any, jax.ShapeDtypeStruct(*argument)) for argument in arguments)
    grouped = jax.vmap(partial(_trial, shape), in_axes=(0, 0, None, None))
    return jax.jit(grouped).lower(numbers, seeds, steps, Data(*data)).compile(gpu_options())


def _trial(
    shape: Shape, numbers: Float[Array, "2"], seed: Integer[Array, ""], steps: Integer[Array, ""], data: Data
) -> tuple[tuple[Array, Array], ...]:
    """One run: mean probabilities and mean entropies of validation rows, test rows, and images of another kind."""
    start_key, run_key = jr.split(jr.fold_in(jr.key(0), seed))
    number = len(data.labels)
    step_size, prior_scale = numbers
    parameters = _draw(shape, start_key)
    particles, shared = split(parameters, "head") if shape.method == "last_layer" else (parameters, None)

    def log_prior(network: Any) -> Scalar:
        squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(network)])
        return -0.5 * jnp.sum(squares) / prior_scale**2

    posterior = Posterior(log_prior, log_likelihood, number, shared=shared)
    target = posterior.bind(jax.tree.map(lambda leaf: leaf[0], particles))
    points = jax.vmap(target.space.unconstrain)(particles)
    moves = sampler(shape.method, step_size, number, steps)

    def batch(key: Key) -> tuple[Array, Array]:
        rows = jr.randint(key, (shape.batch_size,), 0, number, "int32")
        return _standardise(data.train[rows], data.scale), data.labels[rows]

    def step(count: Array, state: Any) -> Any:
        batch_key, sampler_key = jr.split(jr.fold_in(run_key, count))
        return moves.step(sampler_key, state, target, batch(batch_key))[0]

    first = moves.init(target, points, batch(run_key))  # looks at shapes alone
    state = jax.lax.fori_loop(jnp.zeros((), jnp.int32), steps, step, first)
    final = target_at(state, target)

    def predict(image: Array) -> tuple[Array, Array]:
        return _predict(final, state.points, _standardise(image, data.scale))

    parts = (data.validation, data.test, data.outside)
    return tuple(jax.lax.map(predict, images, batch_size=_ROWS_AT_ONCE) for images in parts)


def _draw(shape: Shape, key: Key) -> Any:
    """First networks, stacked; of the last layer alone where the others are shared, which have no axis of particles."""
    number = 1 if shape.method == "point" else NUM_PARTICLES
    one = partial(draw, network=shape.network, shape=shape.image, classes=shape.classes, hidden=shape.hidden)
    networks = jax.vmap(one)(jr.split(key, number))
    if shape.method != "last_layer":
        return networks
    heads, rest = split(networks, "head")
    return jax.tree.map(
        lambda head, leaf: leaf[0] if head is None else head, heads, rest, is_leaf=lambda leaf: leaf is None
    )


def _standardise(images: Array, scale: Float[Array, "2"]) -> Array:
    return (images.astype(scale.dtype) - scale[0]) / scale[1]


def _predict(target: BoundTarget, points: Points, image: Array) -> tuple[Float[Array, " classes"], Scalar]:
    """The particles' mean probabilities of one image, and the mean of their entropies."""
    logits = jax.vmap(lambda point: target.constrain(point)(image))(points)
    logs = jax.nn.log_softmax(logits)
    return jnp.mean(jnp.exp(logs), axis=0), -jnp.mean(jnp.sum(jnp.exp(logs) * logs, axis=-1))
