"""Chains from the nearest Gaussian: warmed up, in a metric that they measure themselves, until their means settle."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from .._types import Batch, Key, Points, Scalar
from ..hamiltonian import ChainState, Hamiltonian
from ..metric import AbstractMetric
from ..sampler import Info
from ..target import AbstractTarget
from .gaussian import Precision, metric_of

ROUND = 50
"""Transitions of a round, after each of which it is seen whether the chains have settled."""
_ACCEPTANCE = 0.8  # what the step size is adapted to: between cheap steps and narrow places
_SMALLEST_STEP = 1e-4


class Draws(NamedTuple):
    """What the chains saw, with axes (transition, chain, …)."""

    points: Float[Array, "t n d"]
    scores: Float[Array, "t n d"]
    acceptance: Float[Array, "t n"]
    jumped: Float[Array, "t n"]
    leaps: Int[Array, " t"]
    info: Info

    @property
    def gradients(self) -> int:
        """Batches of gradients one after the other."""
        return int(jnp.sum(self.leaps)) + len(self.leaps)


def _draw(state: ChainState, info: Info) -> Draws:
    return Draws(state.points, state.scores, state.acceptance, state.jumped, state.leaps, info)


def joined(parts: list[Draws]) -> Draws:
    """One after the other."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


@eqx.filter_jit
def warm_up(
    key: Key, target: AbstractTarget, metric: AbstractMetric, step_size: Scalar, state: ChainState, batch: Batch
) -> tuple[ChainState, Scalar, Draws]:
    """A round in which the step size follows the acceptance; it is returned as well."""

    def advance(carry: tuple[ChainState, Scalar], turn: tuple[Key, Array]) -> tuple[Any, Draws]:
        state, log_step = carry
        own_key, count = turn
        sampler = Hamiltonian(metric, jnp.exp(log_step))
        state, info = sampler.step(own_key, state, target, batch)
        gain = 10 / (10 + count).astype(log_step.dtype)  # long steps first, then smaller and smaller ones
        log_step = log_step + gain * (jnp.mean(state.acceptance) - _ACCEPTANCE)
        return (state, jnp.maximum(log_step, jnp.log(jnp.full_like(log_step, _SMALLEST_STEP)))), _draw(state, info)

    turns = jr.split(key, ROUND), jnp.arange(ROUND)
    (state, log_step), draws = jax.lax.scan(advance, (state, jnp.log(step_size)), turns)
    return state, jnp.exp(log_step), draws


@eqx.filter_jit
def more(
    key: Key, target: AbstractTarget, sampler: Hamiltonian, state: ChainState, batch: Batch, thinning: int
) -> tuple[ChainState, Draws]:
    """A round with nothing adapted; of `thinning` transitions one is kept."""

    def advance(state: ChainState, own_key: Key) -> tuple[ChainState, Draws]:
        state, info = sampler.step(own_key, state, target, batch)
        return state, _draw(state, info)

    state, draws = jax.lax.scan(advance, state, jr.split(key, ROUND))
    return state, jax.tree.map(lambda leaf: leaf[thinning - 1 :: thinning], draws)._replace(leaps=draws.leaps)


def measured_metric(draws: Draws, precision: Precision) -> AbstractMetric:
    """The inverse of the covariance of the later half of the draws, with the Gaussian's own worth d draws of it."""
    half = draws.points[len(draws.points) // 2 :]
    points = half.reshape(-1, half.shape[-1])
    return _metric(points, precision)


@eqx.filter_jit
def _metric(points: Points, precision: Precision) -> AbstractMetric:
    n, d = points.shape
    centred = points - jnp.mean(points, axis=0, keepdims=True)
    if precision.ndim == 1:
        variance = (jnp.sum(centred**2, axis=0) + d / precision) / (n + d)
        return metric_of(1 / variance)
    white = jax.vmap(metric_of(precision).whiten)(centred)
    relative = (white.T @ white + d * jnp.eye(d, dtype=points.dtype)) / (n + d)
    # (R⁻¹ C R⁻ᵀ)⁻¹ = Rᵀ C⁻¹ R with C the covariance of what is whitened
    root = metric_of(precision).root  # type: ignore[attr-defined]
    values, vectors = jnp.linalg.eigh(relative)
    back = root.T @ vectors
    return metric_of((back / values[None]) @ back.T)
