"""Recovery from a step that gives numbers that are not finite.

`Run` has the state before that step. Recovery runs outside the compiled loop, so that a healthy run has no cost
in time or compilation.
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
from ..targets.target import BoundTarget
from .loop import Evaluation, evaluate, step_keys, with_points
from .run import FaultCounters, Run

SHARE = 0.25
"""A run with more than this share of faulty particles stops as diverged."""
_PATIENCE = 5  # a particle with more failures in a row is reported
_HALVINGS = 10  # of a step, before the particle moves back to its start
_DAMPINGS = (1e2, 1e4, 1e6, 1e8)

FiniteAt = Callable[[Points], np.ndarray]
"""A function of (n, d) points that tells for each whether the target is finite there."""


def recover(run: Run) -> None:
    """Prepare a run whose next step failed for another attempt; the run stays unhealthy where that is impossible.

    Particles at which the target, its gradient or its curvature is not finite move back along their last step by
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
        run.loop = run.last_good._replace(healthy=jax.device_put(np.bool_(False)))


def move_back(run: Run, finite_at: FiniteAt) -> bool:
    """Move faulty particles back along their last step; `False` where they are too many, or no point is finite."""
    loop, faults = run.loop, run.faults
    good = finite_at(loop.state.points)
    if np.mean(~good) > SHARE:
        return False
    points = _halve_moves(loop.state.points, on_host(loop.previous), good, finite_at)
    if points is None:
        return False
    run.faults = _count_moves(faults, good, int(loop.step))
    if np.mean(run.faults.stuck) > SHARE:
        return False
    run.loop = loop._replace(state=with_points(loop.state, points), healthy=jax.device_put(np.bool_(True)))
    return True


def move_all_back(run: Run, finite_at: FiniteAt) -> bool:
    """Move faulty particles of a run that ends back along their last step, however many they are.

    Neither counts nor the loop's health change; `False` where no point is finite.
    """
    loop = run.loop
    points = _halve_moves(loop.state.points, on_host(loop.previous), finite_at(loop.state.points), finite_at)
    if points is None:
        return False
    run.loop = loop._replace(state=with_points(loop.state, points))
    return True


def leave_finite(run: Run, batch: Batch) -> tuple[Evaluation, int, bool]:
    """The target at the last particles of a run, after moving back those at which it is not finite.

    Returns:
        The evaluation, the number of particles at which the run left the target not finite, and whether those of a run
        that diverged were moved back.
    """
    seen = evaluate(run.sampler, run.target_now, run.loop.state.points, batch)
    outside = int(np.sum(~_is_finite(seen)))
    if not outside:
        return seen, 0, False

    def finite_at(points: Points) -> np.ndarray:
        return _is_finite(evaluate(run.sampler, run.target_now, points, batch))

    moved_back = False
    if run.loop.healthy and move_back(run, finite_at):
        outside = 0
    else:
        moved_back = move_all_back(run, finite_at)
    if moved_back or not outside:
        run.recorder.amend(on_host(run.loop.state.points))
        seen = evaluate(run.sampler, run.target_now, run.loop.state.points, batch)
    return seen, outside, moved_back


def _is_finite(seen: Evaluation) -> np.ndarray:
    """(n,) bool: whether the log density and its gradient are finite at each particle."""
    return np.asarray(np.isfinite(on_host(seen.log_densities)) & on_host(seen.smooth))


def _count_moves(faults: FaultCounters, good: np.ndarray, step: int) -> FaultCounters:
    again = faults.failed_at >= step - 1
    in_a_row = np.where(good, faults.in_a_row, np.where(again, faults.in_a_row + 1, 1))
    return faults._replace(
        in_a_row=in_a_row.astype(np.int32),
        failed_at=np.where(good, faults.failed_at, step).astype(np.int32),
        stuck=faults.stuck | (in_a_row > _PATIENCE),
        moved_back=faults.moved_back + np.sum(~good),
    )


def _halve_moves(start: Points, previous: np.ndarray, good: np.ndarray, finite_at: FiniteAt) -> Points | None:
    """Move the points that are not good back along their last step by halves, until the target is finite at all."""
    points = on_host(start)
    back = points.copy()
    for halving in range(1, _HALVINGS + 2):
        share = points.dtype.type(0.5**halving if halving <= _HALVINGS else 0)
        with np.errstate(over="ignore", invalid="ignore"):  # a point that overflows is not finite, and is halved again
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
    """Checks at which points the target, and optionally its gradient and curvature, are finite on one minibatch."""

    target: BoundTarget
    batch: Batch
    gradient: bool
    curvature: bool = False

    @classmethod
    def at_next_step(cls, run: Run) -> "_FiniteCheck":
        """The check for the step that failed, with its power of the target and its minibatch."""
        step = run.loop.step
        target = run.target_now
        batch = target.batch(run.data, run.batch_size, step_keys(run.key, step)[0])
        tempered = target if run.tempering is None else target.tempered(run.tempering(step))
        return cls(tempered, batch, run.sampler.traits.differentiates)

    def with_curvature(self) -> "_FiniteCheck":
        return _FiniteCheck(self.target, self.batch, self.gradient, self.gradient)

    def __call__(self, points: Points) -> np.ndarray:
        return on_host(_finite(self.target, points, self.batch, self.gradient, self.curvature))


@compiled
def _finite(target: BoundTarget, points: Points, batch: Batch, gradient: bool, curvature: bool) -> Bool[Array, " n"]:
    """A mask of the particles at which the log density, and optionally its gradient and curvature, are finite."""
    finite = jnp.isfinite(target.log_densities(points, batch))
    if gradient:
        finite &= jnp.all(jnp.isfinite(target.scores(points, batch)), axis=1)
    if curvature:
        # The product with one random direction involves every entry of the Hessian. Reverse mode twice, since a log
        # density with a custom derivative often has no forward mode.
        direction = jr.normal(jr.key(0), points.shape[1:], points.dtype)

        def slope(x: Vector) -> Scalar:
            return jnp.vdot(target.score(x, batch), direction)

        finite &= jnp.all(jnp.isfinite(jax.vmap(jax.grad(slope))(points)), axis=1)
    return finite
