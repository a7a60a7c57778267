"""Chains from the nearest Gaussian: warmed up, in a metric that they measure themselves, until their means settle."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ...core.metric import AbstractMetric, DenseMetric
from ...core.programs import compiled
from ...core.types import Batch, Key, Points, Scalar, cast_like
from ...samplers.hamiltonian import ChainState, Hamiltonian
from ...samplers.sampler import Info
from ...targets.target import AbstractTarget
from .gaussian import Precision, metric_of

ROUND = 50
"""Transitions of a round, after each of which it is seen whether the chains have settled."""
_ACCEPTANCE = 0.8  # what the step size is adapted to: between cheap steps and narrow places
_SMALLEST_STEP = 1e-4


class Draws(NamedTuple):
    """What the chains saw, with axes (transition, chain, …): JAX arrays, or NumPy's where rounds are joined."""

    points: Any
    log_densities: Any
    scores: Any
    acceptance: Any
    leaps: Any
    outside: Any
    info: Info

    @property
    def batches(self) -> int:
        """Batches of gradients one after the other."""
        return int(np.sum(self.leaps)) + len(self.leaps)

    @property
    def gradients(self) -> int:
        """Gradients at single points: all chains leap, half of them jump."""
        return int(np.sum(self.leaps)) * self.acceptance.shape[1] + len(self.leaps) * (self.acceptance.shape[1] // 2)

    @property
    def jumps_outside(self) -> float:
        """The share of jumps that led to where the log density is not finite."""
        return float(np.sum(self.outside)) / max(1, len(self.leaps) * (self.acceptance.shape[1] // 2))

    def thinned(self, every: int) -> "Draws":
        """One draw of so many."""
        return self._replace(
            **{name: getattr(self, name)[every - 1 :: every] for name in ("points", "log_densities", "scores")}
        )

    def line(self, with_points: bool) -> "Draws":
        """Without what the history does not want."""
        return self._replace(points=self.points if with_points else self.points[:0], scores=self.scores[:0])


def _draw(state: ChainState, info: Info) -> Draws:
    return Draws(state.points, state.log_densities, state.scores, state.acceptance, state.leaps, state.outside, info)


def joined(parts: list[Draws]) -> Draws:
    """One after the other, as NumPy arrays: how many there are changes, and should compile nothing."""
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)


@compiled
def one_round(
    key: Key, target: AbstractTarget, sampler: Hamiltonian, state: ChainState, batch: Batch, rate: Scalar
) -> tuple[ChainState, Scalar, Draws]:
    """`ROUND` transitions; the step size follows the acceptance at this rate, 0 for not at all, and is returned too.

    One program for warming up and for sampling: compiling it takes longer than running it on most targets.
    """

    def advance(carry: tuple[ChainState, Scalar], turn: tuple[Key, Array]) -> tuple[Any, Draws]:
        state, log_step = carry
        own_key, count = turn
        state, info = Hamiltonian(sampler.metric, jnp.exp(log_step), sampler.most_leaps, sampler.share).step(
            own_key, state, target, batch
        )
        gain = rate * 10 / (10 + count).astype(log_step.dtype)  # long steps first, then smaller and smaller ones
        log_step = log_step + gain * (jnp.mean(state.acceptance) - _ACCEPTANCE)
        return (state, jnp.maximum(log_step, jnp.log(jnp.full_like(log_step, _SMALLEST_STEP)))), _draw(state, info)

    turns = jr.split(key, ROUND), jnp.arange(ROUND)
    (state, log_step), draws = jax.lax.scan(advance, (state, jnp.log(cast_like(sampler.step_size, rate))), turns)
    return state, jnp.exp(log_step), draws


def measured_metric(draws: Draws, precision: Precision) -> AbstractMetric:
    """The inverse of the covariance of the later half of the draws, with the Gaussian's own worth d draws of it."""
    half = draws.points[len(draws.points) // 2 :]
    points = half.reshape(-1, half.shape[-1])
    return _metric(points, precision)


@compiled
def _metric(points: Points, precision: Precision) -> AbstractMetric:
    n, d = points.shape
    centred = points - jnp.mean(points, axis=0, keepdims=True)
    if precision.ndim == 1:
        variance = (jnp.sum(centred**2, axis=0) + d / precision) / (n + d)
        return metric_of(1 / variance)
    given = metric_of(precision)
    assert isinstance(given, DenseMetric)
    white = jax.vmap(given.whiten)(centred)
    relative = (white.T @ white + d * jnp.eye(d, dtype=points.dtype)) / (n + d)
    # (R⁻¹ C R⁻ᵀ)⁻¹ = Rᵀ C⁻¹ R with C the covariance of what is whitened
    values, vectors = jnp.linalg.eigh(relative)
    back = given.root.T @ vectors
    return metric_of((back / values[None]) @ back.T)
