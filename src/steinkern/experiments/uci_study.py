"""Bayesian networks on the UCI regressions: which settings, how they are chosen, and the runs themselves.

Two hidden layers of 50 ReLU units with biases (the released code of the paper runs two, without biases; its text says
"two-layer"), ten particles, batches of 100 (1000 for year) drawn with replacement. The noise variance is a coordinate
of every particle, with a Gamma(1, rate) prior on its inverse; weights and biases are N(0, 1) a priori. Features and
target are standardised by the training rows; errors and likelihoods are reported in the target's own units.

Every method runs Adam (the paper's optimiser) on its direction with a step size that falls to zero along a cosine;
Langevin chains, which take plain steps, have step size / N on the same schedule. The matrix variants use KFAC with
factored damping, a running average, one kernel a layer; the mixture's weights use Euclidean distances (as the released
code does) over the median bandwidth: Eq. (17) itself is one-hot in so many dimensions.

Step size, epochs, damping and, below 2000 rows, the rate of the noise prior are chosen per dataset and method by the
log-likelihood of a tenth of the *training* rows of some splits, over the same grid for all methods; a split's own test
rows are never looked at (the rows of one split's search are in other splits' tests, since all rows are in some test).
A rate b keeps the noise variance above 2b/N: ten particles near modes leave smaller residuals than the posterior would.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Float32, Integer

from ..core.types import Key, Points, Scalar, cast_like, check_choice, check_count, check_positive
from ..kernels.bandwidth import Median
from ..samplers.ensemble import ensemble
from ..samplers.langevin import psgld, sgld
from ..samplers.sampler import AbstractSampler
from ..samplers.stein import matrix_svgd, svgd
from ..targets.models import NetworkPrior, RegressionNetwork, network_curvature, network_posterior
from .data.datasets import Regression, fingerprint
from .results import TITLES as TITLES
from .training import measured_run

Method: TypeAlias = Literal["sgld", "psgld", "vanilla", "average", "mixture", "ensemble"]
METHODS: tuple[Method, ...] = ("sgld", "psgld", "vanilla", "average", "mixture", "ensemble")
PRECONDITIONED = ("average", "mixture")
NUM_PARTICLES = 10
NOISE_SPREAD = 0.3
HIDDEN = (50, 50)
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3)
DAMPINGS = (0.01, 0.1)
NOISE_RATES = (0.1, 3.0, 20.0)
EPOCHS: dict[str, tuple[int, ...]] = {
    "boston": (100, 200),
    "concrete": (200, 400),
    "energy": (150, 250),
    "kin8nm": (50, 100),
    "naval": (50, 100),
    "power": (50, 100),
    "protein": (25, 50),
    "wine_red": (15, 30),
    "yacht": (200, 400),
    "year": (5, 10),
    "diabetes": (20, 40),
}
"""The numbers of passes over the data that are searched."""
_CURVATURE = {"decay": 0.95, "refresh_every": 10, "measure_every": 5}
_TUNING_TRIALS = {"kin8nm": 4, "naval": 4, "power": 4, "protein": 2, "year": 1}


@dataclass(frozen=True)
class Setting:
    """The choices for one method on one dataset; the damping is of the metric, where there is one."""

    step_size: Any
    epochs: int
    damping: Any = None
    noise_rate: Any = 0.1


def checked(setting: Setting) -> Setting:
    """The setting itself, if its numbers are possible ones."""
    check_positive("step_size", setting.step_size)
    check_positive("noise_rate", setting.noise_rate)
    check_count("epochs", setting.epochs)
    if setting.damping is not None:
        check_positive("damping", setting.damping)
    return setting


class Task(NamedTuple):
    """A dataset ready to run: one table for all splits, standardised on the way by each split's training rows."""

    name: str
    features: Float32[np.ndarray, "rows columns"]
    targets: Float32[np.ndarray, " rows"]
    unit: float
    """The target's own unit: targets here are in units of it."""
    train_rows: Integer[np.ndarray, "trials train"]
    test_rows: Integer[np.ndarray, "trials test"]

    @property
    def num_train(self) -> int:
        """The number of training rows."""
        return self.train_rows.shape[1]

    @property
    def batch_size(self) -> int:
        """Examples a step."""
        return min(1000 if self.name == "year" else 100, self.num_train)

    def protocol(self, hidden: Sequence[int]) -> dict[str, Any]:
        """What a run does beyond its setting: a result is that of another run where any of this is another."""
        sizes = {"particles": NUM_PARTICLES, "batch_size": self.batch_size, "hidden": list(hidden)}
        noise = {"noise_spread": NOISE_SPREAD}
        data = fingerprint(self.features, self.targets, np.array(self.unit), self.train_rows, self.test_rows)
        return {"trials": len(self.train_rows), "data": data, **sizes, **noise, **_CURVATURE}

    def steps(self, epochs: int) -> int:
        """So many passes, in steps."""
        return math.ceil(epochs * self.num_train / self.batch_size)


def prepare(data: Regression, num_trials: int | None = None) -> Task:
    """The reported task: the standard splits, or the first `num_trials` of them; five trials of year's one split."""
    # One affine map for the whole table keeps the digits in float32; each split's own standardisation follows.
    features = (data.features - data.features.mean(0)) / _spread(data.features)
    unit = float(_spread(data.targets[:, None])[0])
    targets = (data.targets - data.targets.mean()) / unit
    train_rows, test_rows = data.train_rows, data.test_rows
    if data.name == "year":
        train_rows, test_rows = np.repeat(train_rows, 5, axis=0), np.repeat(test_rows, 5, axis=0)
    if num_trials is not None:
        train_rows, test_rows = train_rows[:num_trials], test_rows[:num_trials]
    return Task(data.name, features.astype(np.float32), targets.astype(np.float32), unit, train_rows, test_rows)


def tuning_trials(name: str) -> int:
    """On how many of a dataset's splits settings are chosen: fewer of the large ones, whose scores hardly vary."""
    return _TUNING_TRIALS.get(name, 10)


def held_out(task: Task) -> Task:
    """The task on which settings are chosen: the last tenth of every split's training rows in place of its test rows.

    The rows of a split are in random order; those of year are not, and neighbours share an artist, as in its test.
    """
    kept = round(0.9 * task.num_train)
    return task._replace(train_rows=task.train_rows[:, :kept], test_rows=task.train_rows[:, kept:])


def _spread(table: np.ndarray) -> np.ndarray:
    """Standard deviations of the columns; 1 where a column is constant."""
    spread = table.std(0)
    return np.where(spread > 0, spread, 1.0)


class Scale(NamedTuple):
    """What a split's training rows say about location and spread."""

    centre: Float[Array, " columns"]
    spread: Float[Array, " columns"]
    target_centre: Scalar
    target_spread: Scalar


class Scores(NamedTuple):
    """How well the particles predict rows they have not seen, in the target's own units."""

    rmse: Array
    log_likelihood: Array


def scales_of(task: Task) -> Scale:
    """The scale of every trial, stacked."""

    def one(rows: np.ndarray) -> tuple[Any, ...]:
        features, targets = task.features[rows].astype(np.float64), task.targets[rows].astype(np.float64)
        return features.mean(0), _spread(features), targets.mean(), _spread(targets[:, None])[0]

    stacked = [np.stack(parts).astype(np.float32) for parts in zip(*map(one, task.train_rows), strict=True)]
    return Scale(*map(jnp.asarray, stacked))


def build(method: Method, setting: Setting, num_data: int, num_steps: Any) -> AbstractSampler:
    """The sampler of a setting. All numbers may be traced, so that many of them run at once, in one program."""
    check_choice("method", method, METHODS)

    def schedule(count: Any) -> Array:
        size = jnp.asarray(setting.step_size, jnp.float32)
        return size * (1 + jnp.cos(jnp.pi * jnp.minimum(cast_like(count, size) / cast_like(num_steps, size), 1))) / 2

    if method in ("sgld", "psgld"):
        sampler = sgld if method == "sgld" else psgld
        return sampler(lambda count: schedule(count) / num_data)
    optimiser = optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(schedule))
    if method == "ensemble":
        return ensemble(optimiser)
    if method == "vanilla":
        return svgd(optimiser=optimiser)
    settings: dict[str, Any] = {"curvature": network_curvature(), "optimiser": optimiser, "per_block": True}
    settings |= {"damping": setting.damping, **_CURVATURE}
    if method == "average":
        return matrix_svgd("average", **settings)
    return matrix_svgd("mixture", temperature=Median(), weighting="euclidean", **settings)


def trial(
    key: Key,
    method: Method,
    setting: Setting,
    task: Task,
    checkpoints: Integer[Array, " checkpoints"],
    table: tuple[Array, Array],
    scale: Scale,
    train_rows: Integer[Array, " train"],
    test_rows: Integer[Array, " test"],
    hidden: Sequence[int],
) -> Scores:
    """One run on one split: the scores at every checkpoint. `table` holds the task's features and targets."""
    features, targets = table
    start_key, run_key = jr.split(key)
    sizes = (features.shape[1], *hidden, 1)
    draw = partial(RegressionNetwork.draw, sizes=sizes, spread=NOISE_SPREAD, dtype=features.dtype)
    networks = jax.vmap(draw)(jr.split(start_key, NUM_PARTICLES))
    prior = NetworkPrior(rate=setting.noise_rate)
    target = network_posterior(task.num_train, prior).bind(jax.tree.map(lambda leaf: leaf[0], networks))
    points = jax.vmap(target.bound_space.unconstrain)(networks)

    def examples(rows: Array) -> tuple[Array, Array]:
        x = (features[rows] - scale.centre[None, :]) / scale.spread[None, :]
        return x, (targets[rows] - scale.target_centre) / scale.target_spread

    def batch(batch_key: Key) -> tuple[Array, Array]:
        return examples(train_rows[jr.randint(batch_key, (task.batch_size,), 0, task.num_train)])

    def measure(particles: Points) -> Scores:
        x, y = examples(test_rows)
        outputs = jax.vmap(lambda particle: jax.vmap(target.constrain(particle))(x))(particles)
        return predictive_scores(outputs[..., 0], outputs[..., 1], y, scale.target_spread * task.unit)

    sampler = build(method, setting, task.num_train, checkpoints[-1])
    return measured_run(run_key, sampler, target, points, batch, checkpoints, measure)


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


def run_trials(
    method: Method, setting: Setting, task: Task, num_checkpoints: int = 1, hidden: Sequence[int] = HIDDEN
) -> tuple[list[int], Scores]:
    """All trials of a setting under one `vmap`: the checkpoints, and scores (trials, checkpoints)."""
    checkpoints = evenly(task.steps(setting.epochs), num_checkpoints)
    numbers = jnp.asarray([_numbers(setting)], jnp.float32)
    scores = _program(method, task, hidden)(jnp.asarray(checkpoints), numbers, jnp.asarray(0))
    return checkpoints, jax.tree.map(lambda leaf: np.asarray(leaf)[0], scores)


def _program(method: Method, task: Task, hidden: Sequence[int]) -> Callable[[Array, Array, Array], Scores]:
    """All settings and trials under one `vmap`: scores (settings, trials, checkpoints), for any checkpoints."""

    @jax.jit
    def run(
        checkpoints: Array,
        numbers: Array,
        seed: Array,
        table: tuple[Array, Array],
        trials: Array,
        scales: Scale,
        train: Array,
        test: Array,
    ) -> Scores:
        def one(own: Array, number: Array, scale: Scale, train_rows: Array, test_rows: Array) -> Scores:
            setting = Setting(own[0], 0, own[1] if method in PRECONDITIONED else None, own[2])
            key = jr.fold_in(jr.key(seed), number)
            return trial(key, method, setting, task, checkpoints, table, scale, train_rows, test_rows, hidden)

        over_trials = jax.vmap(one, (None, 0, 0, 0, 0))
        return jax.vmap(over_trials, (0, None, None, None, None))(numbers, trials, scales, train, test)

    rows = jnp.asarray(task.train_rows.astype(np.int32)), jnp.asarray(task.test_rows.astype(np.int32))
    table = (jnp.asarray(task.features), jnp.asarray(task.targets))
    inputs = (table, jnp.arange(len(task.train_rows)), scales_of(task), *rows)
    return lambda checkpoints, numbers, seed: run(checkpoints, numbers, seed, *inputs)


def _numbers(setting: Setting) -> tuple[float, float, float]:
    damping = math.nan if setting.damping is None else setting.damping  # stands for none, and is not looked at
    return setting.step_size, damping, setting.noise_rate


def evenly(steps: int, number: int) -> list[int]:
    """Up to `number` increasing counts of steps, the last of them `steps`."""
    return sorted({math.ceil(steps * (i + 1) / number) for i in range(number)})


class Cell(NamedTuple):
    """What the search runs together: one number of epochs, all step sizes, dampings and rates."""

    epochs: int
    numbers: tuple[tuple[float, float | None, float], ...]

    def settings(self) -> list[Setting]:
        """The settings of the cell, in the order of its results."""
        return [Setting(step_size, self.epochs, damping, rate) for step_size, damping, rate in self.numbers]


def cells(method: Method, name: str) -> list[Cell]:
    """The search of a method on a dataset, cell by cell; the same step sizes and epochs for all methods."""
    dampings: tuple[float | None, ...] = DAMPINGS if method in PRECONDITIONED else (None,)
    rates = NOISE_RATES[:1] if name in _TUNING_TRIALS else NOISE_RATES  # of no weight beside thousands of rows
    return [Cell(epochs, tuple(product(STEP_SIZES, dampings, rates))) for epochs in EPOCHS[name]]


class Search:
    """Runs the cells of a method's search on a task, all with one compiled program."""

    def __init__(self, method: Method, task: Task, hidden: Sequence[int] = HIDDEN):
        self._task = held_out(task)
        self._run = _program(method, self._task, hidden)

    def evaluate(self, cell: Cell) -> list[float]:
        """The mean held-out log-likelihood of every setting of a cell."""
        numbers = jnp.asarray([_numbers(setting) for setting in cell.settings()], jnp.float32)
        scores = self._run(jnp.asarray([self._task.steps(cell.epochs)]), numbers, jnp.asarray(1))
        return [float(value) for value in np.asarray(scores.log_likelihood)[..., -1].mean(axis=1)]


def choose(values: Mapping[int, Sequence[float | None]], method: Method, name: str) -> Setting:
    """The setting of the highest finite held-out log-likelihood; `values` are those of each cell, by epochs."""
    best: tuple[float, Setting] | None = None
    for cell in cells(method, name):
        for setting, value in zip(cell.settings(), values[cell.epochs], strict=True):
            if value is not None and math.isfinite(value) and (best is None or value > best[0]):
                best = value, setting
    if best is None:
        raise ValueError(f"no setting of {method} on {name} ended with a finite log-likelihood.")
    return best[1]


def content(setting: Setting) -> dict[str, Any]:
    """A setting as JSON."""
    return asdict(setting)
