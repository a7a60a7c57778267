"""Hamiltonian Monte Carlo with one chain per particle and a metric that all chains share.

The chains leave the target invariant, so their spread is the target's. SVGD spreads particles by repulsion, which is
too narrow in many dimensions. `steinkern.sample` runs these chains and computes particles from their draws.
"""

import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from ..core.types import Batch, Key, Points, Scalar, as_number, cast_like, check_count, check_positive, check_share
from ..kernels.diagnostics import stein_ratio
from ..linalg.metrics import AbstractMetric
from ..targets.target import BoundTarget
from .sampler import AbstractSampler, Info, Traits, root_mean_square

_JITTER = (-1.0, 0.3)
"""The range of the uniform noise on the log step size of each chain in each transition."""
_MIN_CHAINS_TO_JUMP = 4
"""The fewest chains with jumps: one or two of them jump, by the difference of two others."""
_DIVERGED = 1000.0  # the loss of energy, in nats, beyond which a trajectory has diverged
_MEAN_LENGTH = math.pi / 2
"""The mean length of a trajectory: a quarter period, after which a standard Gaussian is independent of its start."""


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
    """The number of jumps of the last transition to points with a log density that is not finite, as beyond an edge.
    Trajectories are not counted: with too long steps, even a smooth density overflows where they end."""


class Noise(NamedTuple):
    """The random numbers of one transition of n chains, m of which try to jump."""

    momenta: Points
    """Standard normal."""
    length: Scalar
    """Of the trajectories, relative to a quarter period: uniform in [0.5, 1.5), or longer where `jitter` is small."""
    jitter: Float[Array, " n"]
    """The factor on every chain's step size; `log_jitter` has its logarithm."""
    acceptance: Float[Array, " n"]
    """Uniform in [0, 1): Metropolis' rule for the trajectories."""
    rows: Int[Array, "3 m"]
    """The indices of three chains for every jump x + y − z: x, which jumps, then y and z, which do not."""
    log_acceptance: Float[Array, " m"]
    """Logarithms of uniform numbers: Metropolis' rule for the jumps."""


def log_jitter(uniform: Any) -> Any:
    """The logarithm of the factor on a chain's step size, from a number that is uniform in [0, 1)."""
    low, high = _JITTER
    return low + (high - low) * uniform


class Hamiltonian(AbstractSampler):
    """One transition of Hamiltonian Monte Carlo for every particle, and a jump proposal for half of them.

    Trajectories follow the leapfrog scheme in the whitened coordinates u = Rx, for a quarter period on average, with a
    random step size for every chain. They are accepted by Metropolis' rule (Duane et al., 1987). A jump adds the
    difference of two particles of the other half, x' = x + y − z (ter Braak, 2006), and moves between modes where the
    particles are in several. Both leave the target invariant.

    Args:
        metric: Q = RᵀR, near the inverse of the target's covariance.
        step_size: of the leapfrog scheme, in whitened coordinates; near 1 for a target that is nearly Gaussian.
        max_leaps: the longest trajectory, in leapfrog steps.
        share: the share of the particles that propose a jump; 0 for none.
    """

    metric: AbstractMetric
    step_size: Any = eqx.field(converter=as_number)
    max_leaps: int = eqx.field(default=64, static=True)
    share: float = eqx.field(default=0.5, static=True)
    traits: ClassVar[Traits] = Traits(deterministic=False, interacting=False)

    def __check_init__(self) -> None:
        check_positive("step_size", self.step_size)
        check_count("max_leaps", self.max_leaps)
        check_share("share", self.share)

    @staticmethod
    def init(target: BoundTarget, points: Points, batch: Batch = None) -> ChainState:
        """The state before the first transition. It does not depend on the metric or the step size."""
        values, scores = target.values_and_scores(points, batch)
        return ChainState(
            points, values, scores, jnp.zeros_like(values), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        )

    def step(self, key: Key, state: ChainState, target: BoundTarget, batch: Batch = None) -> tuple[ChainState, Info]:
        state = self.transition(self._draw(key, state.points), state, target, batch)
        pull = jax.vmap(self.metric.pull_score)(state.scores)
        norm = root_mean_square(jnp.mean(pull, axis=0))
        return state, Info(norm, cast_like(self.step_size, norm), stein_ratio(state.points, state.scores))

    def transition(self, noise: Noise, state: ChainState, target: BoundTarget, batch: Batch = None) -> ChainState:
        """The next state for these random numbers."""
        state = self._trajectories(noise, state, target, batch)
        return self._jump(noise, state, target, batch) if noise.rows.shape[1] else state

    def num_jumping(self, n: int) -> int:
        """The number of `n` chains that propose a jump in a transition."""
        return min(max(1, round(self.share * n)), n - 2) if self.share > 0 and n >= _MIN_CHAINS_TO_JUMP else 0

    def _draw(self, key: Key, points: Points) -> Noise:
        n, dtype, jumping = points.shape[0], points.dtype, self.num_jumping(points.shape[0])
        keys = jr.split(key, 8)
        order = jr.permutation(keys[4], n)
        others = max(n - jumping, 2)
        plus = jr.randint(keys[5], (jumping,), 0, others)
        minus = jnp.remainder(plus + jr.randint(keys[6], (jumping,), 1, others), others)  # any other than `plus`
        return Noise(
            momenta=jr.normal(keys[0], points.shape, dtype),
            length=0.5 + jr.uniform(keys[1], (), dtype),
            jitter=jnp.exp(log_jitter(jr.uniform(keys[2], (n,), dtype))),
            acceptance=jr.uniform(keys[3], (n,), dtype),
            rows=jnp.stack([order[:jumping], order[jumping:][plus], order[jumping:][minus]]),
            log_acceptance=jnp.log(jr.uniform(keys[7], (jumping,), dtype)),
        )

    def _trajectories(self, noise: Noise, state: ChainState, target: BoundTarget, batch: Batch) -> ChainState:
        step = cast_like(self.step_size, state.points)
        steps = step * noise.jitter[:, None]
        length = _MEAN_LENGTH * noise.length
        leaps = jnp.clip(jnp.ceil(length / step), 1, self.max_leaps).astype(jnp.int32)
        pull, push_back = jax.vmap(self.metric.pull_score), jax.vmap(self.metric.unwhiten)

        def energy_gain(momenta: Array, values: Array) -> Array:
            return values - state.log_densities - jnp.sum(momenta**2 - noise.momenta**2, axis=1) / 2

        def leap(_: Any, moving: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            points, momenta, values, scores = moving
            # A trajectory that has diverged is rejected, and waits where it began, with an infinite momentum: where it
            # ended a differential equation may be so stiff that all chains would wait for it in every leap.
            moves = (energy_gain(momenta, values) > -_DIVERGED)[:, None]
            halfway = momenta + steps / 2 * pull(scores)
            points = jnp.where(moves, points + push_back(steps * halfway), state.points)
            values, scores = target.values_and_scores(points, batch)
            return points, jnp.where(moves, halfway + steps / 2 * pull(scores), jnp.inf), values, scores

        first = (state.points, noise.momenta, state.log_densities, state.scores)
        points, momenta, values, scores = jax.lax.fori_loop(0, leaps, leap, first)
        gain = energy_gain(momenta, values)
        probability = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
        accepted = noise.acceptance < probability
        return ChainState(
            jnp.where(accepted[:, None], points, state.points),
            jnp.where(accepted, values, state.log_densities),
            jnp.where(accepted[:, None], scores, state.scores),
            probability,
            leaps,
            outside=jnp.zeros((), jnp.int32),
        )

    def _jump(self, noise: Noise, state: ChainState, target: BoundTarget, batch: Batch) -> ChainState:
        """Propose jumps by differences of chains that do not jump, so that the proposal is symmetric."""
        d = state.points.shape[1]
        table = _table(state.points, state.log_densities, state.scores)  # one array: one gather, one scatter
        here, plus, minus = table.at[noise.rows].get(mode="promise_in_bounds")
        points = here[:, :d] + plus[:, :d] - minus[:, :d]
        values, scores = target.values_and_scores(points, batch)
        gain = values - here[:, d]
        accepted = noise.log_acceptance < jnp.where(jnp.isfinite(values), gain, -jnp.inf)
        accepted &= jnp.all(jnp.isfinite(scores), axis=1)
        new = jnp.where(accepted[:, None], _table(points, values, scores), here)
        table = table.at[noise.rows[0]].set(new, mode="promise_in_bounds", unique_indices=True)
        outside = jnp.sum(jnp.where(jnp.isfinite(values), 0, 1).astype(jnp.int32), dtype=jnp.int32)
        return state._replace(points=table[:, :d], log_densities=table[:, d], scores=table[:, d + 1 :], outside=outside)


def _table(points: Points, values: Float[Array, " n"], scores: Points) -> Float[Array, "n k"]:
    return jnp.concatenate([points, values[:, None], scores], axis=1)
