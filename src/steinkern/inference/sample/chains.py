"""The second stage: Hamiltonian chains from the nearest Gaussian, until their means and spreads have converged.

Each of two rounds of warm-up adapts the step size and then estimates the metric, the inverse covariance of the draws.
Chains that have not converged four rounds later take steps of many sizes: narrow regions need small ones, and wide
regions large ones.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.interrupt import interruptible
from ...core.messages import Notice
from ...core.programs import compiled
from ...core.types import Batch, Scalar, cast_like
from ...results.outcome import Cost, Diagnostics
from ...samplers.hamiltonian import ChainState, Hamiltonian, Noise
from ...targets.target import BoundTarget
from ..diagnostics import measure_mixing
from ..judge import MAX_DRIFT
from .evaluation import DENSE_DIMENSIONS, Cloud
from .properness import divergence_notice, is_diverging
from .randomness import transition_noise
from .whitening import Whitening, eigh

ROUND = 50
"""The number of transitions in a round; convergence is checked after rounds."""
_WARM_UP = 2  # rounds
MAX_ROUNDS = 16
"""The most rounds after warm-up."""
MAX_ERROR = 0.03
"""The standard errors of means and standard deviations with which chains end, relative to the standard deviation."""
_EQUAL_ROUNDS = 4  # with one step size; chains that have not converged then continue with steps of many sizes
_MAX_HALVINGS = 4.0  # of these steps
_MAX_EARLY_FOURTH_MOMENT = 3.5  # chains with heavier tails do not end before: few draws understate their errors
_GRADIENTS_A_CHAIN = 10_000  # the default budget
_ACCEPTANCE = 0.8  # the mean acceptance to which the step size is adapted: a balance of cost and narrow regions
_MIN_STEP = 1e-4
_NOTICE = "Ctrl-C: the run ends after this round, with the draws so far. A second one ends it at once."
_MAX_NUMBERS = 40_000_000  # in the points of the draws that stay in memory; of more, every 2nd, 5th or 10th stays


@dataclass(frozen=True)
class Chains:
    """The draws of the chains, and how the chains ended."""

    states: Any
    """The states in all rounds: a `ChainState` of NumPy arrays with axes (transition, chain, …)."""
    draws: Any
    """The last of these, after warm-up, which enter the estimates."""
    step_sizes: np.ndarray
    """The step size in each of the states."""
    num_transitions: int
    """In all rounds. Where the states are many, there is one for every second, fifth or tenth transition."""
    sampler: Hamiltonian
    whitening: Whitening
    """The sampler's metric, on the host."""
    slow: bool
    """Whether they took steps of many sizes, because with one size they had not converged."""
    exhausted: bool
    """Whether they ended because of their budget."""
    stopped: bool
    """Whether Ctrl-C ended them."""
    problem: Notice | None
    """How they diverged to infinity; `None` where they did not."""
    cost: Cost


def chains_at(cloud: Cloud, number: int) -> ChainState:
    """Chains at the points of a cloud, several at each where there are fewer points.

    Where the density is not finite at a point, its chains start at others.
    """
    finite = np.isfinite(cloud.log_densities) & np.isfinite(cloud.scores).all(axis=1)
    if not finite.any():
        raise ValueError("`start` leads to where the log density or its gradient is not finite. Start elsewhere.")
    indices, others = np.arange(len(finite)), np.flatnonzero(finite)
    rows = np.resize(np.where(finite, indices, others[indices % len(others)]), number)
    arrays = (*(array[rows] for array in cloud), np.zeros(number), np.int32(0), np.int32(0))
    return ChainState(*jax.device_put(arrays))


def compile_round_ahead(target: BoundTarget, n: int, data: Batch) -> None:
    """Compile the program of a round of n chains in a thread, beside the search for the nearest Gaussian."""
    d = target.space.layout.size
    precision = np.eye(d) if d <= DENSE_DIMENSIONS else np.ones(d)
    unit = jax.device_put(np.float64(1))
    sampler = Hamiltonian(Whitening.of_precision(precision).metric(), unit)
    state = chains_at(Cloud(np.zeros((1, d)), np.zeros(1), np.zeros((1, d))), n)
    noise = transition_noise(np.random.default_rng(0), sampler, 1, n, d, unit.dtype)
    shapes: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((ROUND, *leaf.shape[1:]), leaf.dtype), noise)
    one_round.compile_ahead(shapes, target, sampler, state, data, unit)


def run_chains(
    random: np.random.Generator, target: BoundTarget, state: ChainState, precision: np.ndarray, data: Batch, bar: Any,
    transitions: int = ROUND, max_rounds: int = MAX_ROUNDS, max_gradients: int | None = None,
) -> Chains:  # fmt: skip
    """Run two rounds of warm-up, which adapt step size and metric, and then rounds until the chains have converged.

    Args:
        random: the generator of momenta and jumps.
        target: bound to its space.
        state: the initial state of the chains.
        precision: of a Gaussian near the target, a matrix or a diagonal: the metric of the first round.
        data: the full data.
        bar: the progress bar.
        transitions: in a round.
        max_rounds: the most rounds after warm-up.
        max_gradients: the budget, by default 10,000 a chain. The round in which they are used up is the last one.
    """
    (n, d), dtype = state.points.shape, state.points.dtype
    thinning = next((k for k in (1, 2, 5) if n * d * transitions * max_rounds <= k * _MAX_NUMBERS), 10)
    whitening, step_size = Whitening.of_precision(precision), jax.device_put(np.float64(d**-0.25))
    sampler = Hamiltonian(whitening.metric(), step_size)
    first, cost, problem, exhausted = 0, Cost(), None, False
    rounds, spreads = list[Any](), list[np.ndarray]()
    with interruptible(_NOTICE) as interrupt:
        for number in range(1 - _WARM_UP, max_rounds + 1):  # rounds of warm-up have numbers below 1
            max_halvings, rate = _MAX_HALVINGS * (number > _EQUAL_ROUNDS), np.float64(number < 1)
            noise = transition_noise(random, sampler, transitions, n, d, dtype, max_halvings)
            state, step_size, *recorded = one_round(noise, target, sampler, state, data, jax.device_put(rate))
            draws, step_sizes = jax.tree.map(_on_host, recorded)
            rounds.append(jax.tree.map(lambda leaf: leaf[thinning - 1 :: thinning].copy(), (draws, step_sizes)))
            cost += _cost_of(draws)
            spreads.append(np.subtract(*np.quantile(draws.points, [0.75, 0.25], axis=(0, 1))))
            bar.update()
            if is_diverging(spreads):
                problem = divergence_notice(
                    spreads,
                    jax.tree.map(lambda leaf: leaf[0], rounds[0][0]), jax.tree.map(lambda leaf: leaf[-1], draws),
                    lambda points: _on_host(target.log_densities(jnp.asarray(points, dtype), data)),
                    target.space.layout.coordinate_name,
                )  # fmt: skip
                break
            if number < 1:
                whitening = estimate_metric(draws.points, precision)
                sampler, first = Hamiltonian(whitening.metric(), step_size), len(rounds)
                continue
            exhausted = cost.gradients >= (max_gradients or _GRADIENTS_A_CHAIN * n)
            is_last = exhausted or interrupt.requested or number == max_rounds
            # Stopping at intermediate checks is biased towards rounds that under-sample the tails.
            if number > 1 and (is_last or number <= _EQUAL_ROUNDS):
                mixing = measure_mixing(np.concatenate([draws.points for draws, _ in rounds[first:]]))
                if number > _EQUAL_ROUNDS and mixing.drift > MAX_DRIFT:  # the first half is still warm-up
                    first = (first + len(rounds)) // 2
                elif _have_converged(mixing) and (
                    number == _EQUAL_ROUNDS or mixing.fourth_moment.max() <= _MAX_EARLY_FOURTH_MOMENT
                ):
                    exhausted = False
                    break
            if is_last:
                break
            if number == _EQUAL_ROUNDS:  # drop the draws of long steps, which hardly reached narrow regions
                first = len(rounds)
    states, step_sizes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *rounds)
    draws = jax.tree.map(lambda leaf: leaf[first * (transitions // thinning) :], states)
    return Chains(
        states, draws, step_sizes, len(rounds) * transitions, sampler, whitening,
        number > _EQUAL_ROUNDS, exhausted, interrupt.requested, problem, cost,
    )  # fmt: skip


def _cost_of(draws: Any) -> Cost:
    """The cost of a round: all chains take leapfrog steps, and half of them jump."""
    (transitions, n, _), leaps = draws.points.shape, int(np.sum(draws.leaps))
    return Cost(gradients=leaps * n + transitions * (n // 2), sequential=leaps + transitions)


def _on_host(leaf: Array) -> np.ndarray:
    """A NumPy array, floating-point numbers in float64: moments of many draws lose digits in float32."""
    return np.asarray(leaf, np.float64 if jnp.issubdtype(leaf.dtype, jnp.floating) else None)


def _have_converged(numbers: Diagnostics) -> bool:
    """Whether the standard errors of means and standard deviations are small and nothing drifts."""
    return bool(numbers.chain_errors.max() <= MAX_ERROR and numbers.drift <= MAX_DRIFT)


@compiled
def one_round(
    noise: Noise, target: BoundTarget, sampler: Hamiltonian, state: ChainState, batch: Batch, rate: Scalar
) -> tuple[ChainState, Scalar, ChainState, Float[Array, " t"]]:
    """One transition for each entry of `noise`; the step size adapts to the acceptance at `rate`, 0 to keep it.

    Warm-up and sampling share this program, because for most targets compiling takes longer than running.

    Returns:
        The last state, the next step size, and all states and step sizes along a leading axis.
    """

    def advance(carry: tuple[ChainState, Scalar], numbered_noise: tuple[Noise, Array]) -> tuple[Any, Any]:
        state, log_step = carry
        noise, count = numbered_noise
        step = jnp.exp(log_step)
        state = replace(sampler, step_size=step).transition(noise, state, target, batch)
        gain = rate * 10 / (10 + count).astype(log_step.dtype)  # large changes first, then smaller ones
        log_step = log_step + gain * (jnp.mean(state.acceptance) - _ACCEPTANCE)
        return (state, jnp.maximum(log_step, math.log(_MIN_STEP))), (state, step)

    numbered_noise = noise, jnp.arange(noise.length.shape[0])
    carry = state, jnp.log(cast_like(sampler.step_size, rate))
    (state, log_step), (states, step_sizes) = jax.lax.scan(advance, carry, numbered_noise)
    return state, jnp.exp(log_step), states, step_sizes


def estimate_metric(points: np.ndarray, precision: np.ndarray) -> Whitening:
    """The inverse covariance of the later half of the draws, shrunk to the Gaussian's, which counts as d draws."""
    d = points.shape[-1]
    later = points[len(points) // 2 :].reshape(-1, d)
    centered, n = later - later.mean(axis=0), len(later)
    if precision.ndim == 1:
        return Whitening.of_precision((n + d) / (np.sum(centered**2, axis=0) + d / precision))
    whitening = Whitening.of_precision(precision)
    white = whitening.whiten(centered)
    # (R⁻¹ C R⁻ᵀ)⁻¹ = Rᵀ C⁻¹ R with C the covariance of the whitened draws
    values, vectors = eigh((white.T @ white + d * np.eye(d)) / (n + d))
    back = whitening.root.T @ vectors
    return Whitening.of_precision((back / values) @ back.T)
