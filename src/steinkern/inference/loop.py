"""The compiled loop: takes steps, checks them, and records the history."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..core._xla import reduce_together
from ..core.programs import compiled
from ..core.types import Batch, Key, Points, PyTree, Scalar, cast_like
from ..samplers.sampler import AbstractSampler, Info
from ..targets.target import BoundTarget
from .history import Lines
from .rounding import too_coarse

LONG_STEPS = 8
"""The most steps in a row with clipped moves; a run with more diverges."""


class LoopState(NamedTuple):
    """The state from which the next step continues, besides the key, the target and the data."""

    state: Any
    info: Info
    step: Int[Array, ""]
    largest_velocity: Scalar
    healthy: Bool[Array, ""]
    converged: Bool[Array, ""]
    previous: Points
    """The particles before the last step, towards which recovery moves them back."""
    longest_move_so_far: Scalar
    """The larger of the initial particles' spread and the largest move of a coordinate so far."""
    shortened: Int[Array, ""]
    """The number of moves that were clipped."""
    long_in_a_row: Int[Array, ""]
    """The number of consecutive steps, up to the last one, with a clipped move."""


class Options(NamedTuple):
    """The options of the loop, as arrays, so that another value needs no recompilation."""

    record_every: Int[Array, ""]
    tolerance: Scalar
    max_move: Scalar


@compiled
def first_loop(
    sampler: AbstractSampler, target: BoundTarget, points: Points, batch: Batch, step: Int[Array, ""]
) -> LoopState:
    """The state of the loop before its first step."""
    zero, none = jnp.zeros((), points.dtype), jnp.zeros((), jnp.int32)
    state = sampler.init(target, points, batch)
    return LoopState(
        state, Info(zero, zero, zero), step, zero, jnp.asarray(True), jnp.asarray(False), points, spread_of(points),
        none, none,
    )  # fmt: skip


class Evaluation(NamedTuple):
    """The target at particles."""

    log_densities: Float[Array, " n"]
    scores: Points
    """Zeros where the sampler does not differentiate."""
    particles: PyTree
    """In the parameters' own coordinates, without what they share."""
    smooth: Bool[Array, " n"]
    """Whether the gradient is finite at every particle."""
    slopes: Bool[Array, " d"]
    """Whether the gradient along a coordinate differs from zero at some particle."""
    spread: Scalar
    """The root of the mean variance of the coordinates."""
    coincide: Bool[Array, ""]
    """Whether all particles are equal."""
    coarse: Bool[Array, " d"]
    """Whether a coordinate varies too little for float32."""
    coarse_particles: PyTree
    """The same for the particles in their own coordinates."""


@compiled
def evaluate(sampler: AbstractSampler, target: BoundTarget, points: Points, batch: Batch) -> Evaluation:
    """Evaluate the target at every particle. One program serves before, along and after a run."""
    scores = target.scores(points, batch) if sampler.traits.differentiates else jnp.zeros_like(points)
    particles = jax.vmap(target.space.constrain)(points)
    return Evaluation(
        target.log_densities(points, batch),
        scores,
        particles,
        jnp.isfinite(scores).all(axis=1),
        (scores != 0).any(axis=0),
        spread_of(points),
        (points == points[:1]).all(),
        too_coarse(points),
        jax.tree.map(partial(too_coarse, constants=False), particles),
    )


def spread_of(points: Points) -> Scalar:
    """The root of the mean variance of the coordinates."""
    return jnp.sqrt(jnp.mean(jnp.var(points, axis=0)))


def batch_of(target: BoundTarget, data: Batch, rows: Mapping[str, np.ndarray]) -> Batch:
    """The batch of these rows, keyed by what is subsampled. One program serves before and after a run."""
    return _batch_of(target, data, {name: jax.device_put(chosen.astype(np.int32)) for name, chosen in rows.items()})


@compiled
def _batch_of(target: BoundTarget, data: Batch, rows: dict[str, Array]) -> Batch:
    return target.batch_of(data, rows)


@compiled
def advance(
    key: Key,
    sampler: AbstractSampler,
    target: BoundTarget,
    tempering: Callable[[Array], Array] | None,
    data: Batch,
    loop: LoopState,
    num_steps: Int[Array, ""],
    options: Options,
    batch_size: int | None,
    capacity: int,
    keep_points: bool,
) -> tuple[LoopState, Lines]:
    """Take `num_steps` steps, or fewer on convergence. The counts are traced: one program serves all.

    A step that fails ends the loop with `healthy` False, the number of the steps before it, and the numbers that it
    gave. The state before it is not kept, which would cost a copy a step: `Run` takes the steps before it again.
    """
    last = loop.step + num_steps

    def going(carry: tuple[LoopState, Lines]) -> Array:
        loop, _ = carry
        return (loop.step < last) & loop.healthy & ~loop.converged

    def body(carry: tuple[LoopState, Lines]) -> tuple[LoopState, Lines]:
        before, records = carry
        batch_key, sampler_key = step_keys(key, before.step)
        with jax.named_scope("batch"):
            batch = target.batch(data, batch_size, batch_key)
        power = jnp.ones(()) if tempering is None else tempering(before.step)
        now = target if tempering is None else target.tempered(power)
        state, info = sampler.step(sampler_key, before.state, now, batch)
        tolerance = jnp.where(power == 1, options.tolerance, -1)  # a tempered step cannot converge
        state, farthest, shortened = _clip_moves(before, state, options.max_move)
        after = _after(before, state, info, farthest, shortened, tolerance)
        rest = sampler.at_rest(after.state)
        if rest is not None:
            after = after._replace(converged=after.converged | (after.healthy & rest & (power == 1)))
        slot = jax.lax.div(before.step - (last - num_steps), options.record_every)
        line = Lines(after.info, after.state.points if keep_points else None)
        return after, jax.tree.map(partial(_write_line, slot), records, line)

    line = Lines(loop.info, loop.state.points if keep_points else None)
    return jax.lax.while_loop(going, body, (loop, jax.tree.map(partial(_blank_lines, capacity), line)))


def _blank_lines(capacity: int, line: Array) -> Array:
    """Lines to be overwritten, with any numbers in them."""
    if line.ndim:
        return jnp.zeros((capacity, *line.shape), line.dtype)
    # As a constant, which is copied. For equal numbers XLA compiles a kernel that fills the array.
    return jnp.asarray(np.eye(1, capacity, dtype=line.dtype)[0])


def _write_line(slot: Int[Array, ""], lines: Array, line: Array) -> Array:
    # As an update of a slice: XLA compiles a scatter (`.at[slot].set`) into a loop of its own on a CPU.
    return jax.lax.dynamic_update_index_in_dim(lines, line, slot, 0, allow_negative_indices=False)


def step_keys(key: Key, step: Int[Array, ""]) -> tuple[Key, Key]:
    """The keys of a step for its minibatch and for the sampler, which depend only on its number."""
    batch_key, sampler_key = jr.split(jr.fold_in(key, step))
    return batch_key, sampler_key


def with_points(state: Any, points: Points) -> Any:
    """A copy of a sampler's state with other particles."""
    return eqx.tree_at(lambda state: state.points, state, points)


def _clip_moves(before: LoopState, state: Any, max_move: Scalar) -> tuple[Any, Scalar, Int[Array, ""]]:
    """The state with long moves clipped, the largest move of a coordinate, and the number of clipped moves.

    A move is clipped where a coordinate changes by more than `max_move` times `longest_move_so_far`.
    """
    start, end = before.state.points, state.points
    lengths = jnp.max(jnp.abs(end - start), axis=1)
    so_far = before.longest_move_so_far
    limit = jnp.where(so_far > 0, cast_like(max_move, start) * so_far, jnp.inf)
    long = lengths > limit
    share = (limit / jnp.where(long, lengths, 1))[:, None]
    end = jnp.where(long[:, None], start + share * (end - start), end)  # short moves keep every bit
    farthest, shortened = reduce_together(("max", "sum"), (lengths, long.astype(jnp.int32)))
    farthest = jnp.where(jnp.isfinite(farthest), jnp.minimum(farthest, limit), farthest)
    return with_points(state, end), farthest, shortened


def _after(
    before: LoopState, state: Any, info: Info, farthest: Scalar, shortened: Int[Array, ""], tolerance: Scalar
) -> LoopState:
    """The loop after a step. A step to numbers that are not finite, or the ninth clipped one in a row, has failed."""
    long_in_a_row = jnp.where(shortened > 0, before.long_in_a_row + 1, 0)
    # The particles were finite before the step, so they are finite after it where the largest move is.
    healthy = jnp.isfinite(farthest) & jnp.isfinite(info.velocity_norm) & (long_in_a_row <= LONG_STEPS)
    largest = jnp.maximum(before.largest_velocity, info.velocity_norm)
    small = info.velocity_norm <= cast_like(tolerance, largest) * largest
    return LoopState(
        state,
        info,
        step=before.step + healthy.astype(before.step.dtype),
        largest_velocity=largest,
        healthy=healthy,
        converged=healthy & (tolerance > 0) & (largest > 0) & small,
        previous=before.state.points,
        longest_move_so_far=jnp.maximum(before.longest_move_so_far, farthest),
        shortened=before.shortened + shortened,
        long_in_a_row=long_in_a_row,
    )
