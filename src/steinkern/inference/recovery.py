"""Recovery from a step that gives numbers that are not finite.

The compiled loop stops before such a step is taken. Recovery happens outside of it, so that a healthy run pays nothing
for it, in time or in compilation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool

from ..core.multihost import on_host, placed_like
from ..core.programs import compiled
from ..core.types import Batch, Points, Scalar, Vector
from ..targets.target import AbstractTarget
from .loop import step_keys, with_points
from .run import FaultCounters, Run

SHARE = 0.25
"""A run with more than this share of its particles at fault stops as diverged."""
_PATIENCE = 5  # failures in a row before a particle is reported
_HALVINGS = 10  # of a step, before it is taken back altogether
_DAMPINGS = (1e2, 1e4, 1e6, 1e8)

FiniteAt = Callable[[Points], np.ndarray]
"""From (n, d) points to whether the target is finite at each."""


def recover(run: Run) -> None:
    """Bring a run whose next step failed to where it can be tried again; where that is nowhere, leave it unhealthy.

    Particles at which the target, its gradient or its curvature is not finite move back along their last step, by
    halves. Where all are finite, the metric could not be factorised: the step is taken with 10², 10⁴, … times the
    damping.
    """
    check = _FiniteCheck.at_next_step(run)
    points = run.loop.state.points
    if not check(points).all():
        recovered = move_back(run, check)
    elif not (with_curvature := check.with_curvature())(points).all():
        recovered = move_back(run, with_curvature)
    else:
        recovered = _step_with_more_damping(run)
    if not recovered:
        run.loop = run.last_good._replace(healthy=jnp.asarray(False))


def move_back(run: Run, finite_at: FiniteAt) -> bool:
    """Move the particles at fault back along their last step; False where they are too many, or nowhere finite."""
    loop, faults = run.loop, run.faults
    good = finite_at(loop.state.points)
    if np.mean(~good) > SHARE:
        return False
    points = _halved(loop.state.points, on_host(loop.previous), good, finite_at)
    if points is None:
        return False
    run.faults = _count_moves(faults, good, int(loop.step))
    if np.mean(run.faults.stuck) > SHARE:
        return False
    run.loop = loop._replace(state=with_points(loop.state, points), healthy=jnp.asarray(True))
    return True


def _count_moves(faults: FaultCounters, good: np.ndarray, step: int) -> FaultCounters:
    again = faults.failed_at >= step - 1
    in_a_row = np.where(good, faults.in_a_row, np.where(again, faults.in_a_row + 1, 1))
    return faults._replace(
        in_a_row=in_a_row.astype(np.int32),
        failed_at=np.where(good, faults.failed_at, step).astype(np.int32),
        stuck=faults.stuck | (in_a_row > _PATIENCE),
        moved_back=faults.moved_back + np.sum(~good),
    )


def _halved(start: Points, previous: np.ndarray, good: np.ndarray, finite_at: FiniteAt) -> Points | None:
    """The points, those that are not good moved back along their last step until all are."""
    points = on_host(start)
    back = points.copy()
    for halving in range(1, _HALVINGS + 2):
        share = points.dtype.type(0.5**halving if halving <= _HALVINGS else 0)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and halved again
            back[~good] = previous[~good] + share * (points[~good] - previous[~good])
        candidate = placed_like(back, start)
        now = finite_at(candidate)
        if now.all():
            return candidate
        good = good | now
    return None


def _step_with_more_damping(run: Run) -> bool:
    for factor in _DAMPINGS:
        sampler = run.sampler.damped(factor)
        if sampler is None:
            return False
        if run.take_one(sampler):
            largest = np.maximum(run.faults.largest_damping, factor)
            run.faults = run.faults._replace(damped=run.faults.damped + 1, largest_damping=largest)
            return True
    return False


@dataclass(frozen=True)
class _FiniteCheck:
    """Whether the target is finite at points, on one minibatch; its gradient and curvature too where asked for."""

    target: AbstractTarget
    batch: Batch
    gradient: bool
    curvature: bool = False

    @classmethod
    def at_next_step(cls, run: Run) -> "_FiniteCheck":
        """The check for the step that failed: its power of the target, and its minibatch."""
        step = run.loop.step
        target = run.target_now
        batch = target.batch(run.data, run.batch_size, step_keys(run.key, step)[0])
        tempered = target if run.tempering is None else target.tempered(run.tempering(step))
        return cls(tempered, batch, run.sampler.differentiates)

    def with_curvature(self) -> "_FiniteCheck":
        return _FiniteCheck(self.target, self.batch, self.gradient, self.gradient)

    def __call__(self, points: Points) -> np.ndarray:
        return on_host(_finite(self.target, points, self.batch, self.gradient, self.curvature))


@compiled
def _finite(target: AbstractTarget, points: Points, batch: Batch, gradient: bool, curvature: bool) -> Bool[Array, " n"]:
    """Whether the log density is finite at every particle, and its gradient and curvature where they are asked for."""
    finite = jnp.isfinite(target.log_densities(points, batch))
    if gradient:
        finite &= jnp.all(jnp.isfinite(target.scores(points, batch)), axis=1)
    if curvature:
        # One random direction sees every entry of the Hessian. By reverse mode twice: a log density with a derivative
        # of its own often has no forward mode.
        direction = jr.normal(jr.key(0), points.shape[1:], points.dtype)

        def slope(x: Vector) -> Scalar:
            return jnp.vdot(target.score(x, batch), direction)

        finite &= jnp.all(jnp.isfinite(jax.vmap(jax.grad(slope))(points)), axis=1)
    return finite
