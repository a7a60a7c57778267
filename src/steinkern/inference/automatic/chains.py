"""The second stage: chains from the nearest Gaussian, in a metric that they measure, until their means settle."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.interrupt import interruptible
from ...core.metric import AbstractMetric
from ...core.programs import compiled
from ...core.types import Batch, Scalar, cast_like
from ...samplers.hamiltonian import ChainState, Hamiltonian, Noise
from ...targets.target import AbstractTarget
from .convergence import drifting, mixing, settled
from .properness import quartile_range, running_away
from .randomness import transition_noise
from .start import Start
from .whitening import Whitening, eigh

ROUND = 50
"""Transitions of a round, after each of which it is seen whether the chains have settled."""
_WARM_UPS = 2  # rounds
_LEAST_ROUNDS = 2
MOST_ROUNDS = 16
"""Of the chains, beside two for warming up."""
_HARD = 4  # rounds after which chains that have not settled go on with half the step: narrow places want it
_ACCEPTANCE = 0.8  # what the step size is adapted to: between cheap steps and narrow places
_SMALLEST_STEP = 1e-4
_MOST_NUMBERS = 20_000_000  # of draws that are kept


class Draws(NamedTuple):
    """What the chains saw, with axes (transition, chain, …): JAX arrays of a round, NumPy arrays on the host."""

    points: Any
    log_densities: Any
    scores: Any
    acceptance: Any
    leaps: Any
    outside: Any
    step_size: Any

    @property
    def jumps_outside(self) -> float:
        """The share of jumps that led to where the log density is not finite."""
        return float(np.sum(self.outside)) / max(1, len(self.leaps) * (self.acceptance.shape[1] // 2))

    def thinned(self, every: int) -> "Draws":
        """One draw of so many."""
        return self._replace(
            **{name: getattr(self, name)[every - 1 :: every] for name in ("points", "log_densities", "scores")}
        )


class Lines(NamedTuple):
    """What the history wants of the transitions of a round."""

    points: np.ndarray
    """None of them where they are too many."""
    acceptance: np.ndarray
    leaps: np.ndarray
    mean_score: np.ndarray
    """Root mean square of the whitened scores' mean over the chains."""
    step_size: np.ndarray
    stein_ratio: np.ndarray

    @classmethod
    def of(cls, draws: Draws, metric: AbstractMetric, with_points: bool) -> "Lines":
        """Those of draws in NumPy."""
        points, scores = draws.points, draws.scores
        n, d = points.shape[1:]
        means = Whitening.of(metric).pull_scores(scores.mean(axis=1))
        centred = points - points.mean(axis=1, keepdims=True)
        ratio = -np.sum(centred * scores, axis=(1, 2)) / ((n - 1) * d)
        kept = points if with_points else points[:0]
        return cls(kept, draws.acceptance, draws.leaps, np.sqrt(np.mean(means**2, axis=1)), draws.step_size, ratio)

    @property
    def batches(self) -> int:
        """Batches of gradients one after the other."""
        return int(np.sum(self.leaps)) + len(self.leaps)

    @property
    def gradients(self) -> int:
        """Gradients at single points: all chains leap, half of them jump."""
        return int(np.sum(self.leaps)) * self.acceptance.shape[1] + len(self.leaps) * (self.acceptance.shape[1] // 2)


@dataclass(frozen=True)
class Chains:
    """What the chains saw, and how they ended."""

    draws: Draws
    """Of the rounds that count."""
    lines: Lines
    """Of all rounds, for the history; without points where these are too many."""
    sampler: Hamiltonian
    hard: bool
    """Whether they had to go on with half the step."""
    stopped: bool
    """Whether Ctrl-C ended them."""
    spreads: list[np.ndarray]
    """The distances of the quartiles, round by round."""

    @property
    def spent(self) -> np.ndarray:
        """Values, gradients, Hessians and batches of them."""
        return np.array([0, self.lines.gradients, 0, self.lines.batches])


def run_chains(
    random: np.random.Generator, target: AbstractTarget, start: Start, data: Batch, recorded: bool, bar: Any
) -> Chains:
    """Two rounds that adapt step size and metric, and rounds until means and spreads have settled.

    Args:
        random: draws the momenta, the jumps and all else.
        target: bound to its space.
        start: where the chains begin.
        data: all of them.
        recorded: whether the history wants the chains' points.
        bar: shows how far it is.
    """
    n, d = start.chains.points.shape
    dtype = start.chains.points.dtype
    thinning = min(max(1, n * d * ROUND * MOST_ROUNDS // _MOST_NUMBERS), ROUND // 5)
    state, sampler = (
        start.chains,
        Hamiltonian(start.nearest.whitening.metric(), jax.device_put(np.asarray(d**-0.25, dtype))),
    )
    lines: list[Lines] = []
    rounds: list[Draws] = []
    spreads: list[np.ndarray] = []

    def take(state: ChainState, rate: float) -> tuple[ChainState, Scalar, Draws]:
        noise = transition_noise(random, sampler, ROUND, n, d, dtype)
        state, step, draws = one_round(noise, target, sampler, state, data, jax.device_put(np.asarray(rate, dtype)))
        draws = jax.tree.map(np.asarray, draws)
        lines.append(Lines.of(draws, sampler.metric, recorded))
        spreads.append(quartile_range(draws.points))
        bar.update()
        return state, step, draws

    def end(draws: list[Draws]) -> Chains:
        hard = len(lines) > _WARM_UPS + _HARD
        return Chains(join(draws), join(lines), sampler, hard, interrupt.requested, spreads)

    with interruptible("Ctrl-C: ending after this round, with what there is; again to end at once.") as interrupt:
        for _ in range(_WARM_UPS):
            state, step, draws = take(state, rate=1.0)
            if running_away(spreads):
                return end([draws])
            sampler = Hamiltonian(measured_metric(draws, start.nearest.precision), step)
        for turn in range(MOST_ROUNDS):
            state, _, draws = take(state, rate=0.0)
            rounds.append(draws.thinned(thinning))
            if interrupt.requested or running_away(spreads):
                break
            # Stopping at intermediate checks is biased towards rounds that under-sample the tails.
            if _HARD <= turn < MOST_ROUNDS - 1:
                continue
            seen = mixing(np.concatenate([part.points for part in rounds]))
            if len(rounds) >= _LEAST_ROUNDS and settled(seen):
                break
            if turn + 1 == _HARD:  # what the longer steps saw is left out: they had hardly been in the narrow places
                sampler, rounds = Hamiltonian(sampler.metric, _halve(sampler.step_size)), []
            elif len(rounds) >= 4 and drifting(seen):  # the first of them were still on their way
                rounds = rounds[len(rounds) // 2 :]
        return end(rounds)


def join(parts: Any) -> Any:
    """One after the other: how many there are changes, and should compile nothing."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


@compiled
def one_round(
    noise: Noise, target: AbstractTarget, sampler: Hamiltonian, state: ChainState, batch: Batch, rate: Scalar
) -> tuple[ChainState, Scalar, Draws]:
    """A transition for each of the noise; the step size follows the acceptance at `rate`, 0 for not at all.

    One program for warming up and for sampling: compiling it takes longer than running it on most targets.
    """

    def advance(carry: tuple[ChainState, Scalar], turn: tuple[Noise, Array]) -> tuple[Any, Draws]:
        state, log_step = carry
        own_noise, count = turn
        step = jnp.exp(log_step)
        now = Hamiltonian(sampler.metric, step, sampler.most_leaps, sampler.share)
        state = now.transition(own_noise, state, target, batch)
        gain = rate * 10 / (10 + count).astype(log_step.dtype)  # long steps first, then smaller and smaller ones
        log_step = log_step + gain * (jnp.mean(state.acceptance) - _ACCEPTANCE)
        return (state, jnp.maximum(log_step, math.log(_SMALLEST_STEP))), Draws(*state, step)

    turns = noise, jnp.arange(noise.length.shape[0])
    (state, log_step), draws = jax.lax.scan(advance, (state, jnp.log(cast_like(sampler.step_size, rate))), turns)
    return state, jnp.exp(log_step), draws


def measured_metric(draws: Draws, precision: np.ndarray) -> AbstractMetric:
    """The inverse of the covariance of the later half of the draws, with the Gaussian's own worth d draws of it."""
    half = np.asarray(draws.points, np.float64)[len(draws.points) // 2 :]
    points = half.reshape(-1, half.shape[-1])
    n, d = points.shape
    centred, given = points - points.mean(axis=0), np.asarray(precision, np.float64)
    if given.ndim == 1:
        variance = (np.sum(centred**2, axis=0) + d / given) / (n + d)
        return Whitening.of_precision(1 / variance).metric()
    whitening = Whitening.of_precision(given)
    white = whitening.whiten(centred)
    # (R⁻¹ C R⁻ᵀ)⁻¹ = Rᵀ C⁻¹ R with C the covariance of what is whitened
    values, vectors = eigh((white.T @ white + d * np.eye(d)) / (n + d))
    back = whitening.root.T @ vectors
    return Whitening.of_precision((back / values) @ back.T).metric()


def _halve(step_size: Any) -> Array:
    return jax.device_put(np.asarray(step_size) / 2)
