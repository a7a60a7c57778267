"""The stages of a run: the nearest Gaussian, chains from it, moments, particles, and what is known of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ...core.interrupt import interruptible
from ...core.metric import AbstractMetric
from ...core.notices import Notice
from ...core.particles import Layout
from ...core.programs import compiled
from ...core.types import Batch, Key, Points, PyTree, Vector
from ...results.result import History, Status
from ...samplers.hamiltonian import ChainState, Hamiltonian
from ...targets.target import AbstractTarget
from . import gaussian as approximation
from .chains import ROUND, Draws, joined, measured_metric, one_round
from .control_variates import Estimates, moments_by_stein
from .convergence import ENOUGH, Mixing, drifting, mixing, settled
from .gaussian import Gaussian, even_noise, nearest_gaussian
from .other_parts import OtherPart, has_been_seen, look_for_another_part
from .properness import NOT_FINITE, no_mass_found, no_mass_kept, quartile_range, running_away
from .quality import MANY, Cost, Quality, concerns, judged
from .support_points import MOST_PLACED, nearest_draws, placed, with_moments

_CHAINS = 100
_DRAWS_A_PARTICLE = 10  # more chains where more particles are wanted
_LEAST_ROUNDS = 2
MOST_ROUNDS = 16
"""Of the chains, beside two for warming up."""
_HARD = 4  # rounds after which chains that have not settled go on with half the step: narrow places want it
_EDGE = 3e-3  # of the jumps lead beyond an edge at 4.7 standard deviations; a smooth density overflows more seldom
_RARE = 1e-3  # of the draws have a density as low as that: a particle placed lower stands beside a ridge
_MOST_NUMBERS = 20_000_000  # of draws that are kept
_RECORDS, _MOST_RECORDED = 60, 2_000_000  # lines of the history, and numbers of the particles in it


@dataclass
class Outcome:
    """What the stages came to, as NumPy arrays in the precision of the run."""

    particles: PyTree
    points: np.ndarray
    log_densities: np.ndarray | None
    status: Status
    message: Notice
    steps: int
    history: History
    sampler: Hamiltonian
    warnings: list[Notice]
    quality: Quality | None
    cost: Cost


def run_stages(key: Key, target: AbstractTarget, start: Vector, data: Batch, num_particles: int, bar: Any) -> Outcome:
    """All stages, from a start to particles and what is known of them; `bar` shows how far it is."""
    names = _names(target, start)
    bar.set_description_str("nearest Gaussian")
    noise_key, warm_key, chain_key, place_key, check_key = jr.split(key, 5)
    chains = max(_CHAINS, -(-num_particles // _DRAWS_A_PARTICLE))
    noise = even_noise(noise_key, _CHAINS, len(start), start.dtype)
    nearest = nearest_gaussian(target, start, noise, data)
    spent = np.array(approximation.evaluations(nearest, _CHAINS))
    first = nearest.cloud(noise if chains == _CHAINS else jr.normal(noise_key, (chains, len(start)), start.dtype))
    if problem := no_mass_found(nearest, start, target, data, names):
        return _diverged(target, problem, first[:num_particles], start, int(nearest.rounds), nearest.metric, spent)
    other, took = look_for_another_part(target, nearest, noise, data)
    spent += np.array(took)
    state = _inside(Hamiltonian(nearest.metric, 1.0).init(target, first, data))
    bar.set_description_str("chains")
    recorded = _RECORDS * num_particles * len(start) <= _MOST_RECORDED
    rounds, lines, sampler, stopped, spreads = _run(warm_key, chain_key, target, nearest, state, data, recorded, bar)
    gradients, batches = sum(part.gradients for part in lines), sum(part.batches for part in lines)
    spent += np.array([0, gradients + chains, 0, batches + 1])
    draws = joined(rounds)
    if running_away(spreads):
        problem = no_mass_kept(spreads, draws.log_densities, nearest, names)
        steps = sum(len(part.leaps) for part in lines)
        return _diverged(target, problem, draws.points[-1, :num_particles], start, steps, sampler.metric, spent)
    if other is not None and has_been_seen(other, draws.points):
        other = None
    return _finished(
        (place_key, check_key), target, data, draws, lines, sampler, num_particles, names, spent, stopped, other
    )


def _diverged(
    target: AbstractTarget, problem: Notice, points: Any, start: Vector, steps: int, metric: AbstractMetric, spent: Any
) -> Outcome:
    """What there is where no posterior was found: points that are not finite are the start."""
    points = jnp.asarray(points)
    whole = jnp.all(jnp.isfinite(points), axis=1, keepdims=True)
    points = jnp.where(whole, points, start[None])
    return Outcome(
        *_in_numpy(target, points), None, Status.DIVERGED, problem, steps, _NO_HISTORY, Hamiltonian(metric, 1.0), [],
        None, Cost(*map(int, spent)),
    )  # fmt: skip


def _run(
    warm_key: Key, chain_key: Key, target: AbstractTarget, nearest: Gaussian, state: ChainState, data: Batch,
    recorded: bool, bar: Any,
) -> tuple[list[Draws], list[Draws], Hamiltonian, bool, list[np.ndarray]]:  # fmt: skip
    """The rounds that count; all rounds, with their points if `recorded`; the sampler; whether Ctrl-C ended them; and
    the spread of every round.
    """
    n, d = state.points.shape
    sampler = Hamiltonian(nearest.metric, jnp.asarray(1.0 / d**0.25, state.points.dtype))
    on, off = jnp.ones((), state.points.dtype), jnp.zeros((), state.points.dtype)
    thinning = min(max(1, n * d * ROUND * MOST_ROUNDS // _MOST_NUMBERS), ROUND // 5)
    lines: list[Draws] = []
    rounds: list[Draws] = []
    spreads: list[np.ndarray] = []
    with interruptible("Ctrl-C: ending after this round, with what there is; again to end at once.") as interrupt:
        for turn in range(2):
            state, step, draws = one_round(jr.fold_in(warm_key, turn), target, sampler, state, data, on)
            lines.append(draws.line(recorded))
            spreads.append(quartile_range(draws.points))
            if running_away(spreads):
                return [draws], lines, sampler, interrupt.requested, spreads
            sampler = Hamiltonian(measured_metric(draws, nearest.precision), step)
            bar.update()
        for turn in range(MOST_ROUNDS):
            state, _, draws = one_round(jr.fold_in(chain_key, turn), target, sampler, state, data, off)
            rounds.append(draws.thinned(thinning))
            lines.append(draws.line(recorded))
            spreads.append(quartile_range(draws.points))
            bar.update()
            if interrupt.requested or running_away(spreads):
                break
            # Stopping at intermediate checks is biased towards rounds that under-sample the tails.
            if _HARD <= turn < MOST_ROUNDS - 1:
                continue
            seen = mixing(joined(rounds).points)
            if len(rounds) >= _LEAST_ROUNDS and settled(seen):
                break
            if turn + 1 == _HARD:  # what the longer steps saw is left out: they had hardly been in the narrow places
                sampler, rounds = Hamiltonian(sampler.metric, sampler.step_size / 2), []
            elif len(rounds) >= 4 and drifting(seen):  # the first of them were still on their way
                rounds = rounds[len(rounds) // 2 :]
    return rounds, lines, sampler, interrupt.requested, spreads


def _finished(
    keys: tuple[Key, Key], target: AbstractTarget, data: Batch, draws: Draws, lines: list[Draws],
    sampler: Hamiltonian, num_particles: int, names: list[str], spent: np.ndarray, stopped: bool,
    other: OtherPart | None,
) -> Outcome:  # fmt: skip
    place_key, check_key = keys
    seen = mixing(draws.points)
    metric = sampler.metric
    estimates = moments_by_stein(
        jnp.asarray(draws.points), jnp.asarray(draws.scores), metric, jnp.asarray(draws.jumps_outside <= _EDGE)
    )
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
        values, scores = _look(target, points, data)
    particles, held = _in_numpy(target, points)
    steps = sum(len(part.leaps) for part in lines)
    if not all(np.all(np.isfinite(leaf)) for leaf in (held, *jax.tree.leaves(particles))):
        return _diverged(target, NOT_FINITE, held, jnp.asarray(draws.points[-1, 0]), steps, metric, spent)
    slow = len(lines) > 2 + _HARD  # where narrow places are seen too little, spread and error are both too small
    enough = ENOUGH / 2 if slow else ENOUGH
    mean_errors, sd_errors = _stated_errors(held, estimates, metric, draws, seen if slow else None, enough)
    quality = judged(
        check_key, white, jax.vmap(metric.pull_score)(scores), aside, seen, (mean_errors, sd_errors),
        float(estimates.identity_error), int(jnp.sum(outside)), draws,
    )  # fmt: skip
    sd = draws.points.std(axis=(0, 1))
    of_estimates = np.asarray(estimates.mean_error) / np.where(sd > 0, sd, 1)
    warnings = list(concerns(quality, seen, of_estimates, draws, names, enough, num_particles >= MANY))
    if other is not None:
        warnings.insert(0, other.notice())
    if stopped:  # what chains do that were cut short says nothing of the target
        short = f"Ctrl-C cut the chains short, after {len(draws.leaps)} transitions: means and spreads may be off."
        warnings = [Notice("interrupted", short)]
    status = Status.STOPPED if stopped else Status.FINISHED if warnings else Status.CONVERGED
    message = {
        Status.STOPPED: Notice("ended-early", "Ctrl-C ended the run; this is what it had."),
        Status.FINISHED: Notice("not-settled", "the run ended, but its checks did not pass: see the warnings."),
        Status.CONVERGED: Notice("converged", "means and spreads have settled."),
    }[status]
    looks = 2 if bool(jnp.any(beside)) else 1
    spent = spent + np.array([0, looks * len(points), 0, looks])
    return Outcome(
        particles, held, np.asarray(values), status, message, steps, _history(target, lines, points), sampler,
        warnings, quality, Cost(*map(int, spent)),
    )  # fmt: skip


def _stated_errors(
    points: np.ndarray, estimates: Estimates, metric: AbstractMetric, draws: Draws, slow: Mixing | None, enough: float
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the particles' means and standard deviations, in standard deviations.

    Of the estimates, and of what the particles have in place of them: those put back to draws have other moments. Where
    chains were `slow` and are not settled, twice the errors of plain means and spreads: along a sharp bend, 20 keys,
    errors were 1.5 of these.
    """
    sd = draws.points.std(axis=(0, 1))
    sd = np.where(sd > 0, sd, 1)
    mean = np.asarray(estimates.centre + metric.unwhiten(estimates.mean))
    back = np.asarray(jax.vmap(metric.unwhiten)(jnp.eye(len(mean), dtype=estimates.mean.dtype)))
    variance = np.sum(back * (np.asarray(estimates.covariance) @ back), axis=0)
    mean_error = np.asarray(estimates.mean_error) / sd
    sd_error = np.asarray(estimates.variance_error) / (2 * sd**2)
    if slow is not None and max(slow.mean_error.max(), slow.sd_error.max()) > enough:
        mean_error, sd_error = 2 * slow.mean_error, 2 * slow.sd_error
    mean_error = np.hypot(mean_error, (points.mean(axis=0) - mean) / sd)
    if len(points) > 1:
        sd_error = np.hypot(sd_error, (points.std(axis=0) - np.sqrt(np.maximum(variance, 0))) / sd)
    return mean_error, sd_error


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
        particles = jax.tree.map(np.asarray, jax.vmap(partial(_constrained, target))(jnp.asarray(clouds)))
    return History(kept + 1, norm, step_size, ratio, particles)


@compiled
def _look(target: AbstractTarget, points: Points, data: Batch) -> tuple[Any, Points]:
    return jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, data)


@compiled
def _whitened(points: Points, centre: Vector, metric: AbstractMetric) -> Points:
    return jax.vmap(metric.whiten)(points - centre[None])


@compiled
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
    particle = target.bound_space.constrain(start)
    names = Layout.of(particle).coordinate_names()
    return list(names) if len(names) == len(start) else [f"coordinate {i}" for i in range(len(start))]


@compiled
def _constrained(target: AbstractTarget, points: Points) -> PyTree:
    return jax.vmap(target.bound_space.constrain)(points)


def _in_numpy(target: AbstractTarget, points: Points) -> tuple[PyTree, np.ndarray]:
    """The particles at these points, and the points."""
    return jax.tree.map(np.asarray, _constrained(target, points)), np.asarray(points)
