"""The second stage: Hamiltonian chains from the nearest Gaussian, until their means and spreads have converged.

Each of two rounds of warm-up adapts the step size and then estimates the metric, the inverse covariance of the draws.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.interrupt import interruptible
from ...core.programs import compiled
from ...core.types import Batch, Scalar, cast_like
from ...linalg.metrics import AbstractMetric
from ...results.outcome import Diagnostics
from ...samplers.hamiltonian import ChainState, Hamiltonian, Noise
from ...targets.target import BoundTarget
from ..diagnostics import measure_mixing
from ..judge import MAX_CHAIN_ERROR, MAX_DRIFT
from .evaluation import DENSE_DIMENSIONS
from .properness import is_running_away, quartile_range
from .randomness import noise_shapes, transition_noise
from .start import Start
from .whitening import Whitening, eigh

ROUND = 50
"""The number of transitions in a round; convergence is checked after rounds."""
_WARM_UPS = 2  # rounds
_LEAST_ROUNDS = 2
MOST_ROUNDS = 16
"""The most rounds after warm-up."""
_HARD = 4  # rounds after which unconverged chains continue with half the step size, which narrow regions need
_ACCEPTANCE = 0.8  # the mean acceptance to which the step size is adapted: a balance of cost and narrow regions
_SMALLEST_STEP = 1e-4
_NOTICE = "Ctrl-C: the run ends after this round, with the draws so far. A second one ends it at once."
_MOST_NUMBERS = 20_000_000  # the most numbers in the kept draws


class Draws(NamedTuple):
    """The draws of the chains, with axes (transition, chain, …): JAX arrays in a round, NumPy arrays on the host."""

    points: Any
    log_densities: Any
    scores: Any
    acceptance: Any
    leaps: Any
    outside: Any
    step_size: Any

    def on_host(self) -> "Draws":
        """NumPy arrays, floating-point numbers in float64: moments of many draws lose digits in float32."""

        def convert(leaf: Any) -> np.ndarray:
            return np.asarray(leaf, np.float64 if jnp.issubdtype(leaf.dtype, jnp.floating) else None)

        return jax.tree.map(convert, self)

    @property
    def jumps_outside(self) -> float:
        """The share of jumps to points at which the log density is not finite."""
        return float(np.sum(self.outside)) / max(1, len(self.leaps) * (self.acceptance.shape[1] // 2))

    def take_every(self, number: int) -> "Draws":
        """The draws of every `number`-th transition."""
        return self._replace(
            **{name: getattr(self, name)[number - 1 :: number] for name in ("points", "log_densities", "scores")}
        )


class Lines(NamedTuple):
    """The diagnostics of a round's transitions for the history."""

    points: np.ndarray
    """Empty where the points of all transitions would take too much memory."""
    acceptance: np.ndarray
    leaps: np.ndarray
    mean_score: np.ndarray
    """Root mean square, over whitened coordinates, of the mean score of the chains."""
    step_size: np.ndarray
    stein_ratio: np.ndarray

    @classmethod
    def of(cls, draws: Draws, metric: AbstractMetric, with_points: bool) -> "Lines":
        """The diagnostics of these draws, which are NumPy arrays."""
        points, scores = draws.points, draws.scores
        n, d = points.shape[1:]
        means = Whitening.of(metric).pull_scores(scores.mean(axis=1))
        centered = points - points.mean(axis=1, keepdims=True)
        ratio = -np.sum(centered * scores, axis=(1, 2)) / ((n - 1) * d)
        kept = points if with_points else points[:0]
        return cls(kept, draws.acceptance, draws.leaps, np.sqrt(np.mean(means**2, axis=1)), draws.step_size, ratio)

    @property
    def batches(self) -> int:
        """The number of sequential batches of gradients."""
        return int(np.sum(self.leaps)) + len(self.leaps)

    @property
    def gradients(self) -> int:
        """The number of gradients at single points: all chains take leapfrog steps, half of them jump."""
        return int(np.sum(self.leaps)) * self.acceptance.shape[1] + len(self.leaps) * (self.acceptance.shape[1] // 2)


@dataclass(frozen=True)
class Chains:
    """The draws of the chains, and how the chains ended."""

    draws: Draws
    """The draws of the rounds that enter the estimates."""
    lines: Lines
    """The diagnostics of all rounds, for the history."""
    sampler: Hamiltonian
    hard: bool
    """Whether the chains needed more than four rounds, the later ones with half the step size."""
    stopped: bool
    """Whether Ctrl-C ended them."""
    spreads: list[np.ndarray]
    """The interquartile ranges by coordinate, one array for each round."""

    @property
    def spent(self) -> np.ndarray:
        """Values, gradients, Hessians and batches of them."""
        return np.array([0, self.lines.gradients, 0, self.lines.batches])


def compile_round_ahead(target: BoundTarget, n: int, dtype: Any, data: Batch) -> None:
    """Compile the program of a round of n chains in a thread, beside the search for the nearest Gaussian."""
    d = target.space.layout.size
    precision = np.eye(d) if d <= DENSE_DIMENSIONS else np.ones(d)
    shapes: list[Any] = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((), (n,), (n, d))]
    scalar, values, points = shapes
    count: Any = jax.ShapeDtypeStruct((), np.int32)
    sampler = Hamiltonian(Whitening.of_precision(precision).metric(), jax.device_put(np.asarray(1.0, dtype)))
    state = ChainState(points, values, points, values, count, count)
    noise = noise_shapes(sampler, ROUND, n, d, dtype)
    one_round.compile_ahead(noise, target, sampler, state, data, scalar)


def run_chains(
    random: np.random.Generator, target: BoundTarget, start: Start, data: Batch, recorded: bool, bar: Any
) -> Chains:
    """Run two rounds of warm-up, which adapt step size and metric, and then rounds until the chains have converged.

    Args:
        random: the generator of momenta and jumps.
        target: bound to its space.
        start: the initial points of the chains and the nearest Gaussian.
        data: the full data.
        recorded: whether the history keeps the chains' points.
        bar: the progress bar.
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
        draws = draws.on_host()
        lines.append(Lines.of(draws, sampler.metric, recorded))
        spreads.append(quartile_range(draws.points))
        bar.update()
        return state, step, draws

    def end(draws: list[Draws]) -> Chains:
        hard = len(lines) > _WARM_UPS + _HARD
        return Chains(join(draws), join(lines), sampler, hard, interrupt.requested, spreads)

    with interruptible(_NOTICE) as interrupt:
        for _ in range(_WARM_UPS):
            state, step, draws = take(state, rate=1.0)
            if is_running_away(spreads):
                return end([draws])
            sampler = Hamiltonian(estimate_metric(draws, start.nearest.precision), step)
        for turn in range(MOST_ROUNDS):
            state, _, draws = take(state, rate=0.0)
            rounds.append(draws.take_every(thinning))
            if interrupt.requested or is_running_away(spreads):
                break
            # Stopping at intermediate checks is biased towards rounds that under-sample the tails.
            if _HARD <= turn < MOST_ROUNDS - 1:
                continue
            seen = measure_mixing(np.concatenate([part.points for part in rounds]))
            if len(rounds) >= _LEAST_ROUNDS and _have_settled(seen):
                break
            if turn + 1 == _HARD:  # drop the draws of the longer steps, which hardly reached the narrow regions
                sampler, rounds = Hamiltonian(sampler.metric, _halve(sampler.step_size)), []
            elif len(rounds) >= 4 and seen.drift > MAX_DRIFT:  # the first half is still warm-up
                rounds = rounds[len(rounds) // 2 :]
        return end(rounds)


def _have_settled(numbers: Diagnostics) -> bool:
    """Whether the standard errors of means and standard deviations are small and nothing drifts."""
    return bool(numbers.chain_errors.max() <= MAX_CHAIN_ERROR and numbers.drift <= MAX_DRIFT)


def join(parts: Any) -> Any:
    """Concatenate draws or lines, in NumPy: their number varies, and JAX would compile for each."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


@compiled
def one_round(
    noise: Noise, target: BoundTarget, sampler: Hamiltonian, state: ChainState, batch: Batch, rate: Scalar
) -> tuple[ChainState, Scalar, Draws]:
    """One transition for each entry of `noise`; the step size adapts to the acceptance at `rate`, 0 to keep it.

    Warm-up and sampling share this program, because for most targets compiling takes longer than running.
    """

    def advance(carry: tuple[ChainState, Scalar], turn: tuple[Noise, Array]) -> tuple[Any, Draws]:
        state, log_step = carry
        own_noise, count = turn
        step = jnp.exp(log_step)
        now = Hamiltonian(sampler.metric, step, sampler.max_leaps, sampler.share)
        state = now.transition(own_noise, state, target, batch)
        gain = rate * 10 / (10 + count).astype(log_step.dtype)  # large changes first, then smaller ones
        log_step = log_step + gain * (jnp.mean(state.acceptance) - _ACCEPTANCE)
        return (state, jnp.maximum(log_step, math.log(_SMALLEST_STEP))), Draws(*state, step)

    turns = noise, jnp.arange(noise.length.shape[0])
    (state, log_step), draws = jax.lax.scan(advance, (state, jnp.log(cast_like(sampler.step_size, rate))), turns)
    return state, jnp.exp(log_step), draws


def estimate_metric(draws: Draws, precision: np.ndarray) -> AbstractMetric:
    """The inverse covariance of the later half of the draws, shrunk to the Gaussian's, which counts as d draws."""
    half = np.asarray(draws.points, np.float64)[len(draws.points) // 2 :]
    points = half.reshape(-1, half.shape[-1])
    n, d = points.shape
    centered, given = points - points.mean(axis=0), np.asarray(precision, np.float64)
    if given.ndim == 1:
        variance = (np.sum(centered**2, axis=0) + d / given) / (n + d)
        return Whitening.of_precision(1 / variance).metric()
    whitening = Whitening.of_precision(given)
    white = whitening.whiten(centered)
    # (R⁻¹ C R⁻ᵀ)⁻¹ = Rᵀ C⁻¹ R with C the covariance of the whitened draws
    values, vectors = eigh((white.T @ white + d * np.eye(d)) / (n + d))
    back = whitening.root.T @ vectors
    return Whitening.of_precision((back / values) @ back.T).metric()


def _halve(step_size: Any) -> Array:
    return jax.device_put(np.asarray(step_size) / 2)
