"""Hamiltonian Monte Carlo with one chain a particle and a metric that all chains share.

The chains leave the target invariant, so their spread is the target's. SVGD spreads particles by repulsion, which is
too narrow in many dimensions. `steinkern.sample` runs these chains and computes particles from their draws.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from ..core.metric import AbstractMetric
from ..core.types import Batch, Key, Points, as_number, cast_like, check_count, check_positive, check_share
from ..kernels.diagnostics import stein_ratio
from ..targets.target import AbstractTarget
from .sampler import AbstractSampler, Info, root_mean_square

_JITTER = (-1.0, 0.3)  # range of the uniform noise on the log step size, drawn for each chain and transition
_LENGTH = math.pi / 2  # mean trajectory length; a quarter turn on a standard Gaussian ends independent of its start


class ChainState(NamedTuple):
    """The positions of the chains, and the target's log densities and scores there."""

    points: Points
    log_densities: Float[Array, " n"]
    scores: Points
    acceptance: Float[Array, " n"]
    """The acceptance probability of every chain's last trajectory."""
    leaps: Int[Array, ""]
    """The number of leapfrog steps of the last trajectory."""
    outside: Int[Array, ""]
    """The number of jumps in the last transition to points whose log density is not finite, such as beyond an edge.
    Trajectories are not counted: with too long steps they end so far out that even a smooth density overflows."""


class Hamiltonian(AbstractSampler):
    """One transition of Hamiltonian Monte Carlo for every particle, and a jump proposal for half of them.

    Trajectories follow the leapfrog scheme in the whitened coordinates u = Rx, for a quarter turn on average, with a
    random step size for every chain. They are accepted by Metropolis' rule (Duane et al., 1987). A jump adds the
    difference of two particles of the other half, x' = x + y − z (ter Braak, 2006), and moves between modes where the
    particles are in several. Both leave the target invariant.

    Args:
        metric: Q = RᵀR, near the inverse of the target's covariance.
        step_size: of the leapfrog scheme, in whitened coordinates; near 1 for a target that is nearly Gaussian.
        most_leaps: the longest trajectory, in leapfrog steps.
        share: the share of the particles that propose a jump; 0 for none.
    """

    metric: AbstractMetric
    step_size: Any = eqx.field(converter=as_number)
    most_leaps: int = eqx.field(default=32, static=True)
    share: float = eqx.field(default=0.5, static=True)

    def __check_init__(self) -> None:
        check_positive("step_size", self.step_size)
        check_count("most_leaps", self.most_leaps)
        check_share("share", self.share)

    @property
    def deterministic(self) -> bool:
        return False

    @property
    def interacting(self) -> bool:
        return False

    def init(self, target: AbstractTarget, points: Points, batch: Batch = None) -> ChainState:
        values, scores = _look(target, points, batch)
        return ChainState(
            points, values, scores, jnp.zeros_like(values), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        )

    def step(self, key: Key, state: ChainState, target: AbstractTarget, batch: Batch = None) -> tuple[ChainState, Info]:
        trajectory_key, jump_key = jr.split(key)
        before = state.points
        state = self._trajectories(trajectory_key, state, target, batch)
        if self.share > 0 and before.shape[0] >= 4:
            state = self._jump(jump_key, state, target, batch)
        pull = jax.vmap(self.metric.pull_score)(state.scores)
        norm = root_mean_square(jnp.mean(pull, axis=0))
        return state, Info(norm, cast_like(self.step_size, norm), stein_ratio(state.points, state.scores))

    def _trajectories(self, key: Key, state: ChainState, target: AbstractTarget, batch: Batch) -> ChainState:
        n = state.points.shape[0]
        momentum_key, length_key, jitter_key, accept_key = jr.split(key, 4)
        dtype = state.points.dtype
        step = cast_like(self.step_size, state.points)
        jitter = jr.uniform(jitter_key, (n, 1), dtype, *_JITTER)
        own = step * jnp.exp(jitter)
        length = _LENGTH * jr.uniform(length_key, (), dtype, 0.5, 1.5)
        leaps = jnp.clip(jnp.ceil(length / step), 1, self.most_leaps).astype(jnp.int32)
        momenta = jr.normal(momentum_key, state.points.shape, dtype)
        pull, push_back = jax.vmap(self.metric.pull_score), jax.vmap(self.metric.unwhiten)

        def leap(_: Any, moving: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            points, momenta, _, scores = moving
            momenta = momenta + own / 2 * pull(scores)
            points = points + push_back(own * momenta)
            values, scores = _look(target, points, batch)
            return points, momenta + own / 2 * pull(scores), values, scores

        first = (state.points, momenta, state.log_densities, state.scores)
        points, last_momenta, values, scores = jax.lax.fori_loop(0, leaps, leap, first)
        gain = values - state.log_densities - jnp.sum(last_momenta**2 - momenta**2, axis=1) / 2
        probability = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
        accepted = jr.uniform(accept_key, (n,), dtype) < probability
        moved = state._replace(points=points, log_densities=values, scores=scores)
        none = jnp.zeros((), jnp.int32)
        return _chosen(accepted, moved, state)._replace(acceptance=probability, leaps=leaps, outside=none)

    def _jump(self, key: Key, state: ChainState, target: AbstractTarget, batch: Batch) -> ChainState:
        """Jumps by differences of chains that do not jump, which makes the proposal symmetric."""
        n = state.points.shape[0]
        order_key, pair_key, accept_key = jr.split(key, 3)
        order = jr.permutation(order_key, n)
        number = min(max(1, round(self.share * n)), n - 2)
        jumping, others = order[:number], order[number:]
        one_key, other_key = jr.split(pair_key)
        one = jr.randint(one_key, (number,), 0, n - number)
        apart = jr.randint(other_key, (number,), 1, n - number)
        two = jnp.remainder(one + apart, n - number)  # uniform over the others except `one`
        points = state.points[jumping] + state.points[others[one]] - state.points[others[two]]
        values, scores = _look(target, points, batch)
        gain = values - state.log_densities[jumping]
        accepted = jnp.log(jr.uniform(accept_key, (number,), points.dtype)) < jnp.where(jnp.isnan(gain), -jnp.inf, gain)
        accepted &= jnp.all(jnp.isfinite(scores), axis=1)
        here = jax.tree.map(lambda leaf: leaf[jumping], (state.points, state.log_densities, state.scores))
        new = [
            jnp.where(accepted.reshape(-1, *[1] * (old.ndim - 1)), found, old)
            for found, old in zip((points, values, scores), here, strict=True)
        ]
        return state._replace(
            points=state.points.at[jumping].set(new[0]),
            log_densities=state.log_densities.at[jumping].set(new[1]),
            scores=state.scores.at[jumping].set(new[2]),
            outside=jnp.sum(~jnp.isfinite(values)).astype(jnp.int32),
        )


def _look(target: AbstractTarget, points: Points, batch: Batch) -> tuple[Float[Array, " n"], Points]:
    return jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, batch)


def _chosen(accepted: Array, moved: ChainState, state: ChainState) -> ChainState:
    def choose(new: Array, old: Array) -> Array:
        return jnp.where(accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return state._replace(
        points=choose(moved.points, state.points),
        log_densities=choose(moved.log_densities, state.log_densities),
        scores=choose(moved.scores, state.scores),
    )
