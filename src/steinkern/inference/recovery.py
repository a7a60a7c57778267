"""What happens when a step gives numbers that are not finite: who is to blame, and how the run goes on without it.

The compiled loop stops before such a step is taken, and the mending happens here, outside of it: a healthy run pays
nothing for it, in time or in compilation.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool

from ..core.multihost import on_host, placed_like
from ..core.programs import compiled
from ..core.types import Batch, Key, Points, Scalar, Vector
from ..samplers.sampler import AbstractSampler
from ..targets.target import AbstractTarget
from .loop import LoopState, step_keys, with_points

SHARE = 0.25
"""More than this share of the particles in trouble is a run in trouble: it stops as diverged."""
_PATIENCE = 5  # failures in a row before a particle is reported
_HALVINGS = 10  # of a step, before it is taken back altogether
_DAMPINGS = (1e2, 1e4, 1e6, 1e8)

Retry = Callable[[AbstractSampler, LoopState], LoopState]


class Trouble(NamedTuple):
    """What went wrong so far; arrays, so that a checkpoint holds it."""

    in_a_row: np.ndarray
    """(n,) for every particle, how many steps in a row it has failed."""
    failed_at: np.ndarray
    """(n,) the last step at which it failed."""
    stuck: np.ndarray
    """(n,) whether it has ever failed more than five steps in a row."""
    frozen: np.ndarray
    """() how often a particle was moved back."""
    damped: np.ndarray
    """() how many steps were taken with a larger damping."""
    largest_damping: np.ndarray
    """() the largest factor on the damping."""

    @classmethod
    def none(cls, number: int) -> "Trouble":
        """Before the first step of so many particles."""
        never, zero = np.full(number, -2, np.int32), np.zeros((), np.int64)
        return cls(np.zeros(number, np.int32), never, np.zeros(number, bool), zero, zero, np.ones(()))


def mended(
    trouble: Trouble,
    loop: LoopState,
    sampler: AbstractSampler,
    look: Callable[[Points, bool], np.ndarray],
    retry: Retry,
) -> tuple[Trouble, LoopState | None]:
    """A loop from which the step that failed can be tried again, or has been taken; `None` where there is none.

    Particles at which the target, its gradient or its curvature is not finite go back towards their former place, by
    halves of their last step. Where all particles are well it was the factorisation of a metric: the step is taken with
    10², 10⁴, … times the damping.

    Args:
        trouble: what went wrong before.
        loop: as it was before the step that failed.
        sampler: of the run.
        look: from (n, d) points to whether each is well; with `True`, its curvature too.
        retry: one step with a sampler.
    """
    curved = bool(look(loop.state.points, False).all())
    if look(loop.state.points, curved).all():
        return _damped(trouble, loop, sampler, retry)
    return moved_back(trouble, loop, lambda points: look(points, curved))


def moved_back(
    trouble: Trouble, loop: LoopState, look: Callable[[Points], np.ndarray]
) -> tuple[Trouble, LoopState | None]:
    """The loop with its particles at fault moved back; `None` where they are too many, or nowhere well."""
    good = look(loop.state.points)
    if np.mean(~good) > SHARE:
        return trouble, None
    back = _halved(loop.state.points, on_host(loop.previous), good, look)
    if back is None:
        return trouble, None
    step = int(loop.step)
    in_a_row = np.where(good, trouble.in_a_row, np.where(trouble.failed_at >= step - 1, trouble.in_a_row + 1, 1))
    trouble = trouble._replace(
        in_a_row=in_a_row.astype(np.int32),
        failed_at=np.where(good, trouble.failed_at, step).astype(np.int32),
        stuck=trouble.stuck | (in_a_row > _PATIENCE),
        frozen=trouble.frozen + np.sum(~good),
    )
    if np.mean(trouble.stuck) > SHARE:
        return trouble, None
    state = with_points(loop.state, back)
    return trouble, loop._replace(state=state, healthy=jnp.asarray(True))


def _halved(
    start: Points, previous: np.ndarray, good: np.ndarray, look: Callable[[Points], np.ndarray]
) -> Points | None:
    """The points, those that are not good moved back along their last step until all are."""
    points = on_host(start)
    back = points.copy()
    for halving in range(1, _HALVINGS + 2):
        share = points.dtype.type(0.5**halving if halving <= _HALVINGS else 0)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not well, and halved again
            back[~good] = previous[~good] + share * (points[~good] - previous[~good])
        tried = placed_like(back, start)
        now = look(tried)
        if now.all():
            return tried
        good = good | now
    return None


def _damped(
    trouble: Trouble, loop: LoopState, sampler: AbstractSampler, retry: Retry
) -> tuple[Trouble, LoopState | None]:
    for factor in _DAMPINGS:
        stronger = sampler.damped(factor)
        if stronger is None:
            break
        after = retry(stronger, loop._replace(healthy=jnp.asarray(True)))
        if after.healthy:
            largest = np.maximum(trouble.largest_damping, factor)
            return trouble._replace(damped=trouble.damped + 1, largest_damping=largest), after
    return trouble, None


def looker(
    key: Key,
    target: AbstractTarget,
    tempering: Callable[[Array], Array] | None,
    data: Batch,
    batch_size: int | None,
    differentiates: bool,
    step: Array,
) -> Callable[[Points, bool], np.ndarray]:
    """The function `look` of `mended` for one step: what the target is there, on that step's own minibatch."""
    batch = target.batch(data, batch_size, step_keys(key, step)[0])
    now = target if tempering is None else target.tempered(tempering(step))

    def look(points: Points, curved: bool) -> np.ndarray:
        return on_host(_well(now, points, batch, differentiates, curved and differentiates))

    return look


@compiled
def _well(
    target: AbstractTarget, points: Points, batch: Batch, differentiates: bool, curved: bool
) -> Bool[Array, " n"]:
    """Whether the log density is finite at every particle, and its gradient and curvature where they are asked for."""
    well = jnp.isfinite(target.log_densities(points, batch))
    if differentiates:
        well &= jnp.all(jnp.isfinite(target.scores(points, batch)), axis=1)
    if curved:
        # One random direction sees every entry of the Hessian. By reverse mode twice: a log density with a derivative
        # of its own often has no forward mode.
        direction = jr.normal(jr.key(0), points.shape[1:], points.dtype)

        def slope(x: Vector) -> Scalar:
            return jnp.vdot(target.score(x, batch), direction)

        well &= jnp.all(jnp.isfinite(jax.vmap(jax.grad(slope))(points)), axis=1)
    return well
