"""`sample`: the one call."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from tqdm.auto import tqdm

from .._types import Batch, Key, LogDensityFunction, Points, PyTree, Vector, check_count, is_concrete, warn_caller
from ..arguments import check_key
from ..caution import SteinWarning
from ..hamiltonian import ChainState, Hamiltonian
from ..interop._model import AbstractModelTarget
from ..interrupt import interruptible
from ..metric import AbstractMetric
from ..particles import Layout
from ..result import DivergedError, Faults, History, Result, Status
from ..target import AbstractTarget, as_target
from ..wording import explained
from . import gaussian as approximation
from .chains import ROUND, Draws, joined, measured_metric, one_round
from .control import moments_by_stein
from .gaussian import Gaussian, even_noise, nearest_gaussian
from .mixing import ENOUGH, drifting, mixing, settled
from .placing import MOST_PLACED, nearest_draws, placed, with_moments
from .precision import bound_to, double_precision, forget_precision, in_shapes
from .quality import MANY, Cost, Quality, concerns, judged

_CHAINS = 100
_DRAWS_A_PARTICLE = 10  # more chains where more particles are wanted
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 16
_HARD = 4  # rounds after which chains that have not settled go on with half the step: narrow places want it
_RARE = 1e-3  # of the draws have a density as low as that: a particle placed lower stands beside a ridge
_MOST_NUMBERS = 20_000_000  # of draws that are kept
_METHOD = "sample: the nearest Gaussian, Hamiltonian chains from it, particles placed by what they saw"
_RECORDS, _MOST_RECORDED = 60, 2_000_000  # lines of the history, and numbers of the particles in it


@dataclass(frozen=True)
class Sampled(Result):
    """What `sample` gives back: a `Result`, how good it is, and what it took."""

    quality: Quality | None = None
    """`None` where the run came to nothing."""
    cost: Cost = Cost(0, 0, 0, 0)
    _chains: ClassVar[bool] = True
    _flow: ClassVar[str] = "Before the last step these are the chains by which the particles were placed in the end."
    _no_flow: ClassVar[str] = "They were placed at the end, by what the chains saw."

    def resample(self, key: Key, num_particles: int, *, replace: bool = False) -> "Sampled":
        """As for `Result`; what was known of the quality of all particles is not known of some."""
        chosen = super().resample(key, num_particles, replace=replace)
        assert isinstance(chosen, Sampled)
        return dataclasses.replace(chosen, quality=None)

    def _described(self) -> Mapping[str, Any]:
        found = {} if self.quality is None else {"quality": self.quality.in_words(), "cost": self.cost.in_words()}
        return {**super()._described(), "method": _METHOD, **found}

    def summary(self) -> str:
        """The table of `Result.summary`, and what is known of its quality."""
        table = super().summary()
        if self.quality is None:
            return table
        return f"{table}\n{self.quality.in_words()}; {self.cost.in_words()}"


def sample(
    key: Key,
    target: AbstractTarget | LogDensityFunction,
    start: PyTree = None,
    num_particles: int = 100,
    data: Batch = None,
    *,
    progress: bool | None = None,
    throw: bool = True,
) -> Sampled:
    """Particles of a posterior, with nothing to tune: the answer, how good it is, and what it took.

    The start may be far off and the coordinates badly scaled. The Gaussian nearest to the target is found first, then
    a hundred Hamiltonian chains are run from it until their means and spreads have settled, and the particles are
    placed so that they have them. All is computed in double precision where the log density allows it, without touching
    JAX's own switch, and returned in JAX's precision.

    ```python
    result = sk.sample(jax.random.key(0), log_density, start=jnp.zeros(3))
    print(result.summary())
    result.quality.r_hat, result.cost.gradients, result.warnings
    ```

    Args:
        key: `jax.random.key(seed)`.
        target: as for `fit`: a log density, a `LogDensity` or `Posterior`, or what
            `steinkern.interop.numpyro.from_model` (or PyMC's) gives.
        start: one particle's pytree, in the parameters' own coordinates, where the log density is finite. A NumPyro or
            PyMC model needs none: it is drawn from the prior.
        num_particles: how many.
        data: as for `fit`. All of them are used in every step.
        progress: show a progress bar; by default where there is a terminal.
        throw: raise `DivergedError` (which carries the result) where the density has no finite mass that can be found,
            instead of returning a result whose status says so.

    What is not to be trusted is said by a `SteinWarning` and in `result.warnings`: chains that stay apart, funnels,
    heavy tails. Modes that no chain has met are not seen by anything. Ctrl-C, once the chains run, ends them after the
    present round with what there is.

    Raises:
        ValueError: what was given does not fit together, or the start lies where the density is not finite.
        DivergedError: the density is flat or grows in some direction, so that there is no posterior.
    """
    check_count("num_particles", num_particles)
    if not is_concrete(key):
        raise ValueError("`key` must be a key, not traced: `sample` decides by what it sees, so it cannot be compiled.")
    check_key(key)
    given = as_target(target)
    if isinstance(given, AbstractModelTarget) and given.batch(None, None) is not None:
        raise ValueError(
            "`target` draws minibatches, and `sample` uses all data in every step: leave `subsample_size` out of the "
            "model's plates, or use `fit`."
        )
    if start is None:
        if not isinstance(given, AbstractModelTarget):
            raise ValueError("`start` is missing: give one particle's parameters, such as `jnp.zeros(3)`.")
        start = jax.tree.map(lambda leaf: leaf[0], given.prior(jr.fold_in(key, 1), 1))
    start = jax.tree.map(_as_numbers, start)
    data = jax.tree.map(np.asarray, data)  # NumPy keeps the digits that JAX's own precision may not
    given.check_data(data, None)
    with double_precision(given, start, data) as wide:
        with tqdm(total=_MOST_ROUNDS + 2, disable=None if progress is None else not progress, leave=False) as bar:
            with explained(*in_shapes(start, data)):
                bound, vector, batch = bound_to(given, start, data, wide)
            found = _found(key, bound, vector, batch, num_particles, bar)
        in_double = jax.tree.map(np.asarray, (found.particles, found.points, found.history.particles))
    particles, points, recorded = jax.tree.map(jnp.asarray, in_double)  # in JAX's own precision
    history = dataclasses.replace(found.history, particles=jax.tree.map(np.asarray, recorded))
    bound = given.bind(jax.tree.map(lambda leaf: leaf[0], particles))
    forget_precision(bound, points, data)
    settings = {
        "precision": "float64" if wide else "float32",
        "data shapes": [f"{leaf.dtype.name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(data)],
        "key": [str(jr.key_impl(key)), np.asarray(jr.key_data(key)).tolist()],
    }
    result = Sampled(
        particles, points, found.status, found.message, found.steps, history, Faults(), bound, found.sampler,
        None, settings, tuple(found.warnings), found.quality, found.cost,
    )  # fmt: skip
    for text in found.warnings:
        warn_caller(SteinWarning(text, result))
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def _as_numbers(leaf: Any) -> np.ndarray:
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ValueError(f"`start` must hold numbers, one particle's parameters, got {leaf!r}.")
    return np.asarray(leaf)


@dataclass
class _Found:
    """A result in the making."""

    particles: PyTree
    points: Points
    status: Status
    message: str
    steps: int
    history: History
    sampler: Hamiltonian
    warnings: list[str]
    quality: Quality | None
    cost: Cost


def _found(key: Key, target: AbstractTarget, start: Vector, data: Batch, num_particles: int, bar: Any) -> _Found:
    names = _names(target, start)
    bar.set_description_str("nearest Gaussian")
    noise_key, warm_key, chain_key, place_key, check_key = jr.split(key, 5)
    chains = max(_CHAINS, -(-num_particles // _DRAWS_A_PARTICLE))
    noise = even_noise(noise_key, _CHAINS, len(start), start.dtype)
    nearest = nearest_gaussian(target, start, noise, data)
    spent = np.array(approximation.evaluations(nearest, _CHAINS))
    problem = _improper(nearest, names)
    first = nearest.cloud(noise if chains == _CHAINS else jr.normal(noise_key, (chains, len(start)), start.dtype))
    if problem:
        sampler = Hamiltonian(nearest.metric, 1.0)
        return _Found(
            _constrained(target, first[:num_particles]), first[:num_particles], Status.DIVERGED, problem,
            int(nearest.rounds), _NO_HISTORY, sampler, [], None, Cost(*map(int, spent)),
        )  # fmt: skip
    state = Hamiltonian(nearest.metric, 1.0).init(target, first, data)
    state = _inside(state)
    bar.set_description_str("chains")
    recorded = _RECORDS * num_particles * len(start) <= _MOST_RECORDED
    rounds, lines, sampler, stopped = _run(warm_key, chain_key, target, nearest, state, data, recorded, bar)
    gradients, batches = sum(part.gradients for part in lines), sum(part.batches for part in lines)
    spent += np.array([0, gradients + chains, 0, batches + 1])
    draws = joined(rounds)
    return _finished((place_key, check_key), target, data, draws, lines, sampler, num_particles, names, spent, stopped)


def _run(
    warm_key: Key, chain_key: Key, target: AbstractTarget, nearest: Gaussian, state: ChainState, data: Batch,
    recorded: bool, bar: Any,
) -> tuple[list[Draws], list[Draws], Hamiltonian, bool]:  # fmt: skip
    """The rounds that count; all rounds, their points if `recorded`; the sampler; and whether Ctrl-C ended them."""
    n, d = state.points.shape
    sampler = Hamiltonian(nearest.metric, jnp.asarray(1.0 / d**0.25, state.points.dtype))
    on, off = jnp.ones((), state.points.dtype), jnp.zeros((), state.points.dtype)
    thinning = min(max(1, n * d * ROUND * _MOST_ROUNDS // _MOST_NUMBERS), ROUND // 5)
    lines: list[Draws] = []
    rounds: list[Draws] = []
    with interruptible("Ctrl-C: ending after this round, with what there is; again to end at once.") as interrupt:
        for turn in range(2):
            state, step, draws = one_round(jr.fold_in(warm_key, turn), target, sampler, state, data, on)
            lines.append(draws.line(recorded))
            sampler = Hamiltonian(measured_metric(draws, nearest.precision), step)
            bar.update()
        for turn in range(_MOST_ROUNDS):
            state, _, draws = one_round(jr.fold_in(chain_key, turn), target, sampler, state, data, off)
            rounds.append(draws.thinned(thinning))
            lines.append(draws.line(recorded))
            bar.update()
            if interrupt.requested:
                break
            if _HARD <= turn < _MOST_ROUNDS - 1:  # looks would end it just where few draws are far out and errors small
                continue
            seen = mixing(joined(rounds).points)
            if len(rounds) >= _LEAST_ROUNDS and settled(seen):
                break
            if turn + 1 == _HARD:  # what the longer steps saw is left out: they had hardly been in the narrow places
                sampler, rounds = Hamiltonian(sampler.metric, sampler.step_size / 2), []
            elif len(rounds) >= 4 and drifting(seen):  # the first of them were still on their way
                rounds = rounds[len(rounds) // 2 :]
    return rounds, lines, sampler, interrupt.requested


def _finished(
    keys: tuple[Key, Key], target: AbstractTarget, data: Batch, draws: Draws, lines: list[Draws],
    sampler: Hamiltonian, num_particles: int, names: list[str], spent: np.ndarray, stopped: bool,
) -> _Found:  # fmt: skip
    place_key, check_key = keys
    seen = mixing(draws.points)
    metric = sampler.metric
    estimates = moments_by_stein(jnp.asarray(draws.points), jnp.asarray(draws.scores), metric)
    d = draws.points.shape[-1]
    half = draws.points.shape[1] // 2
    halves = draws.points[:, :half], draws.points[:, half:]
    ours, aside = (_whitened(jnp.asarray(part.reshape(-1, d)), estimates.centre, metric) for part in halves)
    white = placed(place_key, ours, num_particles)
    if num_particles > 1:
        white = with_moments(white, estimates.mean, estimates.covariance)
    points = _unwhitened(white, estimates.centre, metric)
    values, scores = _look(target, points, data)
    outside = ~(jnp.isfinite(values) & jnp.all(jnp.isfinite(scores), axis=1))
    rare, beside = np.quantile(draws.log_densities, _RARE), outside
    if num_particles <= MOST_PLACED:  # more of them are draws
        beside = outside | (values < rare)
    if bool(jnp.any(beside)):
        common = draws.log_densities[:, :half].ravel() >= rare
        white = nearest_draws(white, beside, ours[np.flatnonzero(common)])
        points = _unwhitened(white, estimates.centre, metric)
        _, scores = _look(target, points, data)
    sd = draws.points.std(axis=(0, 1))
    mean_errors = np.asarray(estimates.mean_error) / np.where(sd > 0, sd, 1)
    quality = judged(
        check_key, white, jax.vmap(metric.pull_score)(scores), aside, seen, mean_errors,
        float(estimates.identity_error), int(jnp.sum(outside)), draws,
    )  # fmt: skip
    slow = len(lines) > 2 + _HARD  # where narrow places are seen too little, spread and error are both too small
    enough = ENOUGH / 2 if slow else ENOUGH
    warnings = list(concerns(quality, seen, draws, names, enough, num_particles >= MANY))
    if stopped:  # what chains do that were cut short says nothing of the target
        warnings = [f"Ctrl-C cut the chains short, after {len(draws.leaps)} transitions: means and spreads may be off."]
    status = Status.STOPPED if stopped else Status.FINISHED if warnings else Status.CONVERGED
    message = {
        Status.STOPPED: "Ctrl-C ended the run; this is what it had.",
        Status.FINISHED: "the run ended, and does not trust itself: see the warnings.",
        Status.CONVERGED: "means and spreads have settled.",
    }[status]
    looks = 2 if bool(jnp.any(beside)) else 1
    spent = spent + np.array([0, looks * len(points), 0, looks])
    steps = sum(len(part.leaps) for part in lines)
    return _Found(
        _constrained(target, points), points, status, message, steps, _history(target, lines, points), sampler,
        warnings, quality, Cost(*map(int, spent)),
    )  # fmt: skip


_NO_HISTORY = History(np.zeros(0, int), np.zeros(0), np.zeros(0), np.zeros(0), None)


def _history(target: AbstractTarget, lines: list[Draws], points: Points) -> History:
    """Some transitions of the chains, the last one among them, which has the particles themselves.

    Where there are more particles than chains, a line holds the chains at several transitions in a row.
    """
    seen = joined(lines)
    last = len(seen.leaps) - 1
    kept = np.arange(last, -1, -max(1, -(-(last + 1) // _RECORDS)))[::-1]
    norm, step_size, ratio = (np.asarray(part)[kept] for part in seen.info)
    particles = None
    if len(seen.points):
        in_a_row = np.arange(-(-len(points) // seen.points.shape[1]))
        rows = np.maximum(kept[:-1, None] - in_a_row, 0)
        clouds = seen.points[rows].reshape(len(rows), -1, points.shape[1])[:, : len(points)]
        clouds = np.concatenate([clouds, np.asarray(points)[None]])
        particles = jax.vmap(partial(_constrained, target))(jnp.asarray(clouds))
    return History(kept + 1, norm, step_size, ratio, particles)


def _improper(nearest: Gaussian, names: list[str]) -> str:
    """Why there is no posterior to be found; empty where there may be one."""
    if bool(nearest.settled) and bool(jnp.all(jnp.isfinite(nearest.mean))):
        return ""
    metric = nearest.metric
    spread = jax.vmap(metric.unwhiten)(jnp.eye(len(names), dtype=nearest.mean.dtype))
    worst = names[int(jnp.argmax(jnp.sum(spread**2, axis=0)))]
    return (
        f"the search for the posterior's mass came to no end: it runs away, farthest in {worst!r}. The density is flat "
        "or grows there, so that it has no finite mass: give the parameter a proper prior."
    )


@eqx.filter_jit
def _look(target: AbstractTarget, points: Points, data: Batch) -> tuple[Any, Points]:
    return jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, data)


@eqx.filter_jit
def _whitened(points: Points, centre: Vector, metric: AbstractMetric) -> Points:
    return jax.vmap(metric.whiten)(points - centre[None])


@eqx.filter_jit
def _unwhitened(points: Points, centre: Vector, metric: AbstractMetric) -> Points:
    return centre[None] + jax.vmap(metric.unwhiten)(points)


def _inside(state: ChainState) -> ChainState:
    """Chains that begin where the density is not finite go to where others are."""
    good = jnp.isfinite(state.log_densities) & jnp.all(jnp.isfinite(state.scores), axis=1)
    if bool(jnp.all(good)):
        return state
    if not bool(jnp.any(good)):
        raise ValueError("`start` leads to where the log density or its gradient is not finite. Start elsewhere.")
    others = jnp.flatnonzero(good)
    rows = jnp.where(good, jnp.arange(len(good)), others[jnp.arange(len(good)) % len(others)])
    return jax.tree.map(lambda leaf: leaf[rows] if leaf.ndim else leaf, state)


def _names(target: AbstractTarget, start: Vector) -> list[str]:
    assert target.space is not None
    particle = target.space.constrain(start)
    names = Layout.of(particle).coordinate_names()
    return list(names) if len(names) == len(start) else [f"coordinate {i}" for i in range(len(start))]


@eqx.filter_jit
def _constrained(target: AbstractTarget, points: Points) -> PyTree:
    assert target.space is not None
    return jax.vmap(target.space.constrain)(points)
