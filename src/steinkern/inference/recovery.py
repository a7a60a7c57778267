"""Recovery from a step that gives numbers that are not finite.

It runs outside the compiled loop, so that a healthy run has no cost in time or compilation.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool

from ..core.messages import Notice, quantity
from ..core.multihost import on_host, placed_like, prefetch
from ..core.programs import compiled
from ..core.types import Batch, Points, Scalar, Vector
from ..results.outcome import Faults, Status
from ..samplers.auto import AutoSVGD
from ..targets.target import BoundTarget
from .history import Recorder
from .judge import SAMPLE
from .loop import MAX_CLIPPED_IN_A_ROW, Evaluation, FaultCounters, LoopState, Run, evaluate, take_steps

MAX_FAULTY_SHARE = 0.25
"""A run with more than this share of faulty particles stops as diverged."""
_MAX_FAILURES_IN_A_ROW = 5  # a particle with more failures in a row is reported
_HALVINGS = 10  # of a step, before the particle moves back to its start
_DAMPINGS = (1e2, 1e4, 1e6, 1e8)

FiniteAt = Callable[[Points], np.ndarray]
"""A function of (n, d) points that tells for each whether the target is finite there."""


def recover(run: Run, loop: LoopState, recorder: Recorder) -> LoopState | None:
    """The state for another attempt at a step that failed; `None` where there is none.

    Particles at which the target, its gradient or its curvature is not finite move back along their last step by
    halves. Where all are finite, the metric could not be factorized: the step is taken with 10², 10⁴, … times the
    damping.
    """
    _, target, batch, _ = replace(run, target=run.target_at(loop)).step_at(loop)
    checks_curvature = False

    def finite_at(points: Points) -> np.ndarray:
        finite = _is_finite(evaluate(run.sampler, target, points, batch))
        return finite & on_host(_has_finite_curvature(target, points, batch)) if checks_curvature else finite

    finite = finite_at(loop.state.points)
    if finite.all() and run.sampler.traits.differentiates:
        checks_curvature = True
        finite = finite_at(loop.state.points)
    if finite.all():
        return _step_with_more_damping(run, loop, recorder)
    faults = _count_moves(loop, finite)
    points = _halve_moves(loop, finite, finite_at) if can_continue(finite) and can_continue(~faults.stuck) else None
    return None if points is None else loop.with_points(points).marked(healthy=True)._replace(faults=faults)


def can_continue(finite: np.ndarray) -> bool:
    """Whether a run continues: at most `MAX_FAULTY_SHARE` of the particles are faulty."""
    return bool(np.mean(~finite) <= MAX_FAULTY_SHARE)


def restore_finite_particles(run: Run, loop: LoopState, recorder: Recorder) -> tuple[LoopState, Evaluation, int]:
    """The end of a run, after moving back the particles at which the target is not finite.

    Returns:
        The state, the target at its particles, and the number of particles at which the run left the target not finite:
        0 where so few were moved back that the run has recovered.
    """
    target, batch = run.target_at(loop), run.first_batch()

    def finite_at(points: Points) -> np.ndarray:
        return _is_finite(evaluate(run.sampler, target, points, batch))

    evaluation = evaluate(run.sampler, target, loop.state.points, batch)
    prefetch((evaluation.log_densities, evaluation.finite_scores, evaluation.nonzero, loop.faults))
    finite = _is_finite(evaluation)
    outside = int(np.sum(~finite))
    points = _halve_moves(loop, finite, finite_at) if outside else None
    if points is None:
        return loop, evaluation, outside
    if loop.healthy and can_continue(finite):
        loop, outside = loop._replace(faults=_count_moves(loop, finite)), 0
    recorder.amend(on_host(points))
    return loop.with_points(points), evaluate(run.sampler, target, points, batch), outside


def count_faults(loop: LoopState) -> Faults:
    """The faults so far, as a result has them."""
    faults = jax.tree.map(on_host, loop.faults)
    stuck = tuple(map(int, np.flatnonzero(faults.stuck)))
    damping = float(max(1, faults.largest_damping))
    return Faults(int(faults.moved_back), stuck, int(faults.damped), damping, int(loop.clipped))


def divergence(run: Run, loop: LoopState, last: Evaluation, num_outside: int) -> tuple[Status, Notice] | None:
    """The status of a run that diverged and how it did; `None` where it did not.

    Args:
        run: the run.
        loop: its last state.
        last: the target at its last particles.
        num_outside: the number of particles at which it left the target not finite.
    """
    if loop.healthy and not num_outside:
        return None
    smaller, damped = "lower the learning rate, or use an adaptive step rule", "raise `damping`, or repair the Hessian"
    if isinstance(run.sampler, AutoSVGD):  # it has neither a learning rate nor damping
        smaller = damped = SAMPLE
    moved_back = ""
    if num_outside and _is_finite(last).all():
        moved_back = f", {num_outside} of them moved back to where the target is finite"
    if loop.healthy:
        text = (
            f"the log density, or its gradient, is NaN or infinite at {quantity(num_outside, 'particle')} after "
            f"{quantity(int(loop.step), 'step')}{moved_back}. Likely causes: (a) they left the support, where its "
            f"gradient is still finite: declare constraints with `support=`; (b) the step size is too large: {smaller}."
        )
        return Status.DIVERGED, Notice("outside-support", text)
    what = "gave numbers that are not finite"
    if loop.clipped_in_a_row >= MAX_CLIPPED_IN_A_ROW:
        what = (
            f"leads to numbers that are not finite: it is the {MAX_CLIPPED_IN_A_ROW + 1}th in a row to move particles "
            "far beyond any earlier move"
        )
    single = loop.state.points.dtype.itemsize < 8
    too_coarse, enable = (", or float32 is too coarse", ", or enable x64") if single else ("", "")
    text = (
        f"step {int(loop.step) + 1} {what}; the particles are those before it{moved_back}. Likely causes: (a) the step "
        f"size is too large: {smaller}; (b) the log density or its gradient is NaN or infinite where the particles "
        "went: declare constraints with `support=`, or start closer; (c) the curvature is singular or indefinite: "
        f"{damped}; (d) numbers overflow{too_coarse}: bring the parameters to scales nearer 1{enable}."
    )
    return Status.DIVERGED, Notice("not-finite", text)


def _is_finite(evaluation: Evaluation) -> np.ndarray:
    """(n,) bool: whether the log density and its gradient are finite at each particle."""
    return np.asarray(np.isfinite(on_host(evaluation.log_densities)) & on_host(evaluation.finite_scores))


def _count_moves(loop: LoopState, finite: np.ndarray) -> FaultCounters:
    faults, step = jax.tree.map(on_host, loop.faults), int(loop.step)
    again = np.where(faults.failed_at >= step, faults.in_a_row + 1, 1)
    in_a_row = np.where(finite, faults.in_a_row, again).astype(np.int32)
    return faults._replace(
        in_a_row=in_a_row,
        failed_at=np.where(finite, faults.failed_at, step + 1).astype(np.int32),
        stuck=faults.stuck | (in_a_row > _MAX_FAILURES_IN_A_ROW),
        moved_back=np.int32(faults.moved_back + np.sum(~finite)),
    )


def _halve_moves(loop: LoopState, finite: np.ndarray, finite_at: FiniteAt) -> Points | None:
    """The points, the faulty ones moved back along their last step by halves until the target is finite at all."""
    points, previous = on_host(loop.state.points), on_host(loop.previous)
    restored = points.copy()
    for share in (*0.5 ** np.arange(1, _HALVINGS + 1), 0.0):
        with np.errstate(over="ignore", invalid="ignore"):  # a point that overflows is not finite, and is halved again
            restored[~finite] = (previous + points.dtype.type(share) * (points - previous))[~finite]
        candidate = placed_like(restored, loop.state.points)
        finite = finite | finite_at(candidate)
        if finite.all():
            return candidate
    return None


def _step_with_more_damping(run: Run, loop: LoopState, recorder: Recorder) -> LoopState | None:
    for factor in _DAMPINGS:
        sampler = run.sampler.damped(factor)
        if sampler is None:
            return None
        after = take_steps(replace(run, sampler=sampler), loop.marked(healthy=True), 1, recorder)
        if after.healthy:
            faults = after.faults
            largest = np.maximum(on_host(faults.largest_damping), np.int32(factor))
            damped = np.int32(on_host(faults.damped) + 1)
            return after._replace(faults=faults._replace(damped=damped, largest_damping=largest))
    return None


@compiled
def _has_finite_curvature(target: BoundTarget, points: Points, batch: Batch) -> Bool[Array, " n"]:
    """A mask of the particles at which the Hessian is finite."""
    # The product with one random direction involves every entry. Reverse mode twice, since a log density with a custom
    # derivative often has no forward mode.
    direction = jr.normal(jr.key(0), points.shape[1:], points.dtype)

    def slope(x: Vector) -> Scalar:
        return jnp.vdot(target.score(x, batch), direction)

    return jnp.all(jnp.isfinite(jax.vmap(jax.grad(slope))(points)), axis=1)
