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
from ..core.multihost import on_host, placed_like
from ..core.programs import compiled
from ..core.types import Batch, Points, Scalar, Vector
from ..results.outcome import Faults
from ..samplers.auto import AutoSVGD
from ..targets.target import BoundTarget
from .history import Recorder
from .judge import SAMPLE
from .loop import MAX_CLIPPED_IN_A_ROW, Evaluation, FaultCounters, LoopState, Run, evaluate, take_steps

SHARE = 0.25
"""A run with more than this share of faulty particles stops as diverged."""
_PATIENCE = 5  # a particle with more failures in a row is reported
_HALVINGS = 10  # of a step, before the particle moves back to its start
_DAMPINGS = (1e2, 1e4, 1e6, 1e8)

FiniteAt = Callable[[Points], np.ndarray]
"""A function of (n, d) points that tells for each whether the target is finite there."""


def recover(run: Run, loop: LoopState, recorder: Recorder) -> LoopState | None:
    """The state for another attempt at a step that failed; `None` where there is none.

    Particles at which the target, its gradient or its curvature is not finite move back along their last step by
    halves. Where all are finite, the metric could not be factorised: the step is taken with 10², 10⁴, … times the
    damping.
    """
    target = run.target_at(loop)
    _, target, batch, _ = replace(run, target=target).step_at(loop)
    gradient = run.sampler.traits.differentiates
    for curvature in (False, gradient):

        def finite_at(points: Points, curvature: bool = curvature) -> np.ndarray:
            return on_host(_finite(target, points, batch, gradient, curvature))

        finite = finite_at(loop.state.points)
        if not finite.all():
            faults = _count_moves(loop, finite)
            points = (
                _halve_moves(loop, finite, finite_at) if is_bearable(finite) and is_bearable(~faults.stuck) else None
            )
            return None if points is None else loop.with_points(points).marked(healthy=True)._replace(faults=faults)
    return _step_with_more_damping(run, loop, recorder)


def is_bearable(finite: np.ndarray) -> bool:
    """Whether so few particles are faulty that a run goes on."""
    return bool(np.mean(~finite) <= SHARE)


def leave_finite(run: Run, loop: LoopState, recorder: Recorder) -> tuple[LoopState, Evaluation, int]:
    """The end of a run, after moving back the particles at which the target is not finite.

    Returns:
        The state, the target at its particles, and the number of particles at which the run left the target not finite:
        0 where so few were moved back that the run has recovered.
    """
    target, batch = run.target_at(loop), run.first_batch()

    def finite_at(points: Points) -> np.ndarray:
        return _is_finite(evaluate(run.sampler, target, points, batch))

    evaluation = evaluate(run.sampler, target, loop.state.points, batch)
    finite = _is_finite(evaluation)
    points = None if finite.all() else _halve_moves(loop, finite, finite_at)
    if points is None:
        return loop, evaluation, int(np.sum(~finite))
    outside = int(np.sum(~finite))
    if loop.healthy and is_bearable(finite):
        outside, loop = 0, loop._replace(faults=_count_moves(loop, finite))
    recorder.amend(on_host(points))
    return loop.with_points(points), evaluate(run.sampler, target, points, batch), outside


def count_faults(loop: LoopState) -> Faults:
    """The faults so far, as a result has them."""
    faults = jax.tree.map(on_host, loop.faults)
    stuck = tuple(map(int, np.flatnonzero(faults.stuck)))
    damping = float(faults.largest_damping)
    return Faults(int(faults.moved_back), stuck, int(faults.damped), damping, int(loop.clipped))


def divergence(run: Run, loop: LoopState, evaluation: Evaluation, num_outside: int) -> Notice | None:
    """How a run diverged; `None` where it did not.

    Args:
        run: the run.
        loop: its last state.
        evaluation: the target at its last particles.
        num_outside: the number of particles at which it left the target not finite.
    """
    if loop.healthy and not num_outside:
        return None
    moved_back = num_outside > 0 and bool(_is_finite(evaluation).all())
    smaller, damped = (
        "lower the learning rate, or use an adaptive step rule",
        "raise `damping`, or use a repaired Hessian",
    )
    if isinstance(run.sampler, AutoSVGD):  # it has neither a learning rate nor damping
        smaller = damped = SAMPLE
    if loop.healthy:
        back = ". They were moved back along their last step" if moved_back else ""
        return Notice(
            "outside-support",
            f"the log density, or its gradient, is NaN or infinite at {quantity(num_outside, 'particle')} after "
            f"{quantity(int(loop.step), 'step')}{back}. Likely causes: (a) they left the support, where its gradient "
            f"is still finite: declare constraints with `support=`; (b) the step size is too large: {smaller}.",
        )
    what = "gave numbers that are not finite"
    if loop.clipped_in_a_row >= MAX_CLIPPED_IN_A_ROW:
        what = (
            f"leads to numbers that are not finite: it is the {MAX_CLIPPED_IN_A_ROW + 1}th in a row to move particles "
            "far beyond any earlier move"
        )
    single = loop.state.points.dtype.itemsize < 8
    coarse = "float32 is too coarse for the target, or its" if single else "its"
    enable = "enable x64, or " if single else ""
    back = f", {num_outside} of them moved back to where the target is finite" if moved_back else ""
    return Notice(
        "not-finite",
        f"step {int(loop.step) + 1} {what}; the particles are those before it{back}. Likely causes: (a) the step size "
        f"is too large: {smaller}; (b) the log density or its gradient is NaN or infinite where the particles went: "
        "declare constraints with `support=`, or start closer; (c) the curvature is singular or indefinite: "
        f"{damped}; (d) {coarse} numbers overflow: {enable}bring the parameters to scales nearer 1.",
    )


def _is_finite(evaluation: Evaluation) -> np.ndarray:
    """(n,) bool: whether the log density and its gradient are finite at each particle."""
    return np.asarray(np.isfinite(on_host(evaluation.log_densities)) & on_host(evaluation.smooth))


def _count_moves(loop: LoopState, finite: np.ndarray) -> FaultCounters:
    faults, step = jax.tree.map(on_host, loop.faults), int(loop.step)
    again = faults.failed_at >= step - 1
    in_a_row = np.where(finite, faults.in_a_row, np.where(again, faults.in_a_row + 1, 1))
    return faults._replace(
        in_a_row=in_a_row.astype(np.int32),
        failed_at=np.where(finite, faults.failed_at, step).astype(np.int32),
        stuck=faults.stuck | (in_a_row > _PATIENCE),
        moved_back=np.int32(faults.moved_back + np.sum(~finite)),
    )


def _halve_moves(loop: LoopState, finite: np.ndarray, finite_at: FiniteAt) -> Points | None:
    """The points, the faulty ones moved back along their last step by halves until the target is finite at all."""
    points, previous = on_host(loop.state.points), on_host(loop.previous)
    back = points.copy()
    for halving in range(1, _HALVINGS + 2):
        share = points.dtype.type(0.5**halving if halving <= _HALVINGS else 0)
        with np.errstate(over="ignore", invalid="ignore"):  # a point that overflows is not finite, and is halved again
            back[~finite] = previous[~finite] + share * (points[~finite] - previous[~finite])
        candidate = placed_like(back, loop.state.points)
        now = finite_at(candidate)
        if now.all():
            return candidate
        finite = finite | now
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
