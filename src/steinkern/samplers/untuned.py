"""Matrix-SVGD that chooses its step size, for `fit` without a sampler."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..core.metric import AbstractMetric
from ..core.particles import Scored
from ..core.types import Batch, Key, Points, Scalar, as_number, cast_like, check_positive
from ..kernels.matrix import AbstractMatrixKernel, Isotropic, as_matrix_kernel
from ..kernels.scalar import IMQ
from ..kernels.sums import Affine, Sum
from ..targets.target import AbstractTarget
from .sampler import AbstractSampler, Info, make_info, root_mean_square

AT_REST = 1e-3
"""The root mean square of the whitened velocity, in standard deviations a unit step, below which particles rest."""
AFFINE_WEIGHT = 0.1
"""The weight of the affine kernel in the sum with the inverse multiquadric."""
FIRST_STEP = 0.3
LARGEST_STEP = 3.0
LEAST_STEP = 1e-4
LEAST_SHARE = 0.05
"""The factor on the step size at the end of the decay."""
_GAIN = 0.2  # factor on the change of the logarithm of the step size
_AGREEMENT = 0.5  # the cosine of two velocities in a row at which the step size stays as it is
_LONGEST = 0.5  # the longest move of a particle, in standard deviations a coordinate


def default_kernel() -> AbstractMatrixKernel:
    """K0 of Eq. (12): the inverse multiquadric, which shapes the cloud, and affine velocities, which fix its moments.

    The inverse multiquadric alone loses spread in many dimensions: 0.83 of a standard deviation with 100 particles in
    100 dimensions, and 0.97 to 1.00 with the affine part.
    """
    return Sum((Isotropic(IMQ()), Affine(weight=AFFINE_WEIGHT)))


class UntunedState(NamedTuple):
    """The particles, their last velocity in whitened coordinates, and the step size."""

    points: Points
    velocity: Points
    log_step: Scalar
    steps: Int[Array, ""]


class Untuned(AbstractSampler):
    """Matrix-SVGD in one metric, with a step size that follows the agreement of successive velocities.

    The metric is that of the Gaussian nearest to the target, the mean curvature of Eq. (15) over its mass. With the
    cosine a of two whitened velocities in a row the step size is multiplied by exp(0.2 (a − 0.5)): it grows while the
    particles move on, and falls where they overshoot or where the noise of minibatches turns the velocity. In the
    second half of `horizon` steps a cosine decay to 0.05 comes on top. A particle moves at most half a standard
    deviation a coordinate in one step.

    Args:
        metric: Q = RᵀR, near the inverse of the target's covariance.
        horizon: the number of steps over which the step size decays.
        kernel: K0 of Eq. (12), in coordinates whitened by the metric.
    """

    metric: AbstractMetric
    horizon: Any = eqx.field(converter=as_number)
    kernel: AbstractMatrixKernel = eqx.field(default_factory=default_kernel, converter=as_matrix_kernel)

    def __check_init__(self) -> None:
        check_positive("horizon", self.horizon)

    def init(self, target: AbstractTarget, points: Points, batch: Batch = None) -> UntunedState:
        first = jnp.log(jnp.asarray(FIRST_STEP, points.dtype))
        return UntunedState(points, jnp.zeros_like(points), first, jnp.zeros((), jnp.int32))

    def step(
        self, key: Key, state: UntunedState, target: AbstractTarget, batch: Batch = None
    ) -> tuple[UntunedState, Info]:
        points = state.points
        scores = target.scores(points, batch)
        metric = jax.tree.map(lambda leaf: cast_like(leaf, points), self.metric)
        white = metric.whiten(points - jnp.mean(points, axis=0, keepdims=True))
        source = Scored.uniform(white, metric.pull_score(scores))
        with jax.named_scope("velocity"):
            velocity = self.kernel.adapt(white).velocity(white, source)
        log_step = _next_log_step(state, velocity)
        size = jnp.exp(log_step) * self._decay(state.steps, points)
        lengths = size * jnp.sqrt(jnp.mean(velocity**2, axis=1, keepdims=True))
        share = jnp.minimum(1, _LONGEST / jnp.where(lengths > 0, lengths, 1))
        moved = points + metric.unwhiten(size * share * velocity)
        info = make_info(points, metric.unwhiten(velocity), moved, scores)
        return UntunedState(moved, velocity, log_step, state.steps + 1), info

    def at_rest(self, state: UntunedState) -> Bool[Array, ""]:
        return root_mean_square(state.velocity) < AT_REST

    def check(self, points: Points) -> None:
        self.kernel.check(points.shape[1])
        if points.shape[1] != self.metric.size:
            raise ValueError(
                f"`metric` must have the particles' {points.shape[1]} coordinates, got {self.metric.size}."
            )

    def _decay(self, steps: Int[Array, ""], like: Array) -> Scalar:
        """1 for the first half of the horizon, and a cosine down to `LEAST_SHARE` over the second."""
        passed = jnp.clip(steps.astype(like.dtype) / cast_like(self.horizon, like), 0.5, 1.0)
        return LEAST_SHARE + (1 - LEAST_SHARE) * 0.5 * (1 + jnp.cos(2 * jnp.pi * (passed - 0.5)))


def _next_log_step(state: UntunedState, velocity: Points) -> Scalar:
    """The logarithm of the step size, changed by the agreement of two velocities in a row."""
    sizes = jnp.sqrt(jnp.sum(velocity**2) * jnp.sum(state.velocity**2))
    agreement = jnp.sum(velocity * state.velocity) / jnp.where(sizes > 0, sizes, 1)
    changed = jnp.clip(state.log_step + _GAIN * (agreement - _AGREEMENT), jnp.log(LEAST_STEP), jnp.log(LARGEST_STEP))
    return jnp.where(state.steps > 0, changed, state.log_step).astype(velocity.dtype)
