"""The compiled loop: takes steps, checks them, and records the history."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from ..core._xla import reduce_together
from ..core.multihost import on_host, prefetch
from ..core.programs import compiled
from ..core.types import Batch, Key, Points, PyTree, Scalar, as_number, cast_like
from ..samplers.sampler import AbstractSampler, Info, target_at
from ..targets.target import BoundTarget
from .history import Recorder

MAX_CLIPPED_IN_A_ROW = 8
"""The most steps in a row with clipped moves; a run with more diverges."""
_CAPACITY = 1024  # the most records that a compiled call returns
_MAX_RECORDED = 2**24  # the most numbers in the particles that it returns


class Options(eqx.Module):
    """The options of a run, already checked. Numbers are arrays, so that another value needs no compilation."""

    num_steps: Any = eqx.field(converter=np.int32)
    """The number of steps, without those of earlier runs."""
    batch_size: int | None
    record_every: Any = eqx.field(converter=np.int32)
    record_particles: bool
    tolerance: Any = eqx.field(converter=as_number)
    """0 for none."""
    tempering: Callable[[Array], Array] | None
    max_move: Any = eqx.field(converter=as_number)
    """Infinite for none."""


class Run(eqx.Module):
    """The inputs of a run, which no step changes."""

    key: Key
    target: BoundTarget
    """Bound to the space of the particles."""
    sampler: AbstractSampler
    data: Batch
    options: Options
    mesh: Mesh | None
    """The devices over which the particles are spread, if any."""
    first_step: Any = eqx.field(converter=np.int32)
    """The number of steps taken before this run."""

    def steps_done(self, loop: "LoopState") -> int:
        """The number of steps taken in this run."""
        return int(loop.step) - int(self.first_step)

    def target_at(self, loop: "LoopState") -> BoundTarget:
        """The target at the current values of the shared parameters."""
        return target_at(loop.state, self.target)

    def step_at(self, loop: "LoopState") -> tuple[Key, BoundTarget, Batch, Any]:
        """The sampler's key, the target, the minibatch and the power of the next step, which depend on its number."""
        batch_key, sampler_key = jr.split(jr.fold_in(self.key, loop.step))
        with jax.named_scope("batch"):
            batch = self.target.batch(self.data, self.options.batch_size, batch_key)
        if self.options.tempering is None:
            return sampler_key, self.target, batch, jnp.ones(())
        power = self.options.tempering(loop.step)
        return sampler_key, self.target.tempered(power), batch, power

    def first_batch(self) -> Batch:
        """A batch of the run's size: the first rows, or all data."""
        sampled = self.target.sampled_rows(self.data, self.options.batch_size)
        rows = {name: np.arange(number, dtype=np.int32) for name, (_, number) in sampled.items()}
        return batch_of(self.target, self.data, rows) if sampled else self.data

    def settings(self) -> dict[str, Any]:
        """The options as JSON, with the shapes of the data and the key."""
        options, tempering = self.options, self.options.tempering
        return {
            "batch_size": options.batch_size,
            "record_every": int(options.record_every),
            "record_particles": options.record_particles,
            "tolerance": float(options.tolerance) or None,
            "max_move": float(options.max_move) if np.isfinite(options.max_move) else None,
            "tempering": None if tempering is None else getattr(tempering, "__name__", type(tempering).__name__),
            "steps before": int(self.first_step),
            "data shapes": [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree.leaves(self.data)],
            "key": [str(jr.key_impl(self.key)), np.asarray(jr.key_data(self.key)).tolist()],
        }


class FaultCounters(NamedTuple):
    """Counts of faults so far, in arrays of JAX or NumPy."""

    in_a_row: Any
    """(n,) the number of steps in a row at which each particle failed."""
    failed_at: Any
    """(n,) one more than the last step at which each particle failed; 0 for none."""
    stuck: Any
    """(n,) whether each particle has ever failed more than five steps in a row."""
    moved_back: Any
    """How often a particle was moved back."""
    damped: Any
    """The number of steps taken with a larger damping."""
    largest_damping: Any
    """The largest factor on the damping; 0 for none."""


class LoopState(NamedTuple):
    """The state from which the next step continues."""

    state: Any
    info: Info
    step: Int[Array, ""]
    healthy: Bool[Array, ""]
    converged: Bool[Array, ""]
    previous: Points
    """The particles before the last step, towards which recovery moves them back."""
    largest_velocity: Scalar
    longest_move: Scalar
    """The larger of the initial particles' spread and the largest move of a coordinate so far."""
    clipped: Int[Array, ""]
    """The number of moves that were clipped."""
    clipped_in_a_row: Int[Array, ""]
    """The number of consecutive steps, up to the last one, with a clipped move."""
    faults: FaultCounters

    @property
    def velocity_fraction(self) -> float:
        """The velocity, relative to the largest of the run."""
        return float(self.info.velocity_norm) / (float(self.largest_velocity) or 1.0)

    def with_points(self, points: Points) -> "LoopState":
        """A copy with other particles."""
        return self._replace(state=eqx.tree_at(lambda state: state.points, self.state, points))

    def marked(self, *, healthy: bool) -> "LoopState":
        """A copy that is healthy or not, and has not converged."""
        return self._replace(healthy=jax.device_put(np.bool_(healthy)), converged=jax.device_put(np.bool_(False)))


@compiled
def first_loop(
    sampler: AbstractSampler, target: BoundTarget, points: Points, batch: Batch, step: Int[Array, ""]
) -> LoopState:
    """The state of the loop before its first step."""
    zero, count, counts = jnp.zeros((), points.dtype), jnp.zeros((), jnp.int32), jnp.zeros(len(points), jnp.int32)
    faults = FaultCounters(counts, counts, counts > 0, count, count, count)
    return LoopState(
        sampler.init(target, points, batch), Info(zero, zero, zero), step, jnp.asarray(True), jnp.asarray(False),
        points, zero, spread_of(points), count, count, faults,
    )  # fmt: skip


class Evaluation(NamedTuple):
    """The target at particles."""

    log_densities: Float[Array, " n"]
    scores: Points
    """Zeros where the sampler does not differentiate."""
    particles: PyTree
    """In the parameters' own coordinates, without what they share."""
    finite_scores: Bool[Array, " n"]
    """For each particle, whether the gradient is finite there."""
    nonzero: Bool[Array, " d"]
    """For each coordinate, whether the gradient along it is nonzero at some particle."""


@compiled
def evaluate(sampler: AbstractSampler, target: BoundTarget, points: Points, batch: Batch) -> Evaluation:
    """Evaluate the target at every particle. One program serves before, during and after a run."""
    scores = target.scores(points, batch) if sampler.traits.differentiates else jnp.zeros_like(points)
    return Evaluation(
        target.log_densities(points, batch),
        scores,
        jax.vmap(target.space.constrain)(points),
        jnp.isfinite(scores).all(axis=1),
        (scores != 0).any(axis=0),
    )


def spread_of(points: Points) -> Scalar:
    """The root of the mean variance of the coordinates."""
    return jnp.sqrt(jnp.mean(jnp.var(points, axis=0)))


@compiled
def batch_of(target: BoundTarget, data: Batch, rows: dict[str, Any]) -> Batch:
    """The batch of these rows, keyed by what is subsampled. One program serves before and after a run."""
    return target.batch_of(data, rows)


def capacity(run: Run, loop: LoopState) -> int:
    """The most records that one call of `advance` returns."""
    return (
        int(np.clip(_MAX_RECORDED // loop.state.points.size, 1, _CAPACITY))
        if run.options.record_particles
        else _CAPACITY
    )


@compiled
def advance(
    run: Run, loop: LoopState, num_steps: Int[Array, ""] | np.integer
) -> tuple[LoopState, tuple[Info, Float[Array, "k n d"] | None]]:
    """Take `num_steps` steps, or fewer on convergence. The counts are traced: one program serves all.

    A step that fails ends the loop with `healthy` False, the number of the steps before it, and the particles after it.
    The state before it is not kept, since that would cost a copy per step: the caller repeats the steps before it.

    Returns:
        The state, and the records: `Info` and particles, stacked along a leading axis.
    """
    last, options = loop.step + num_steps, run.options

    def unfinished(carry: Any) -> Array:
        loop, _ = carry
        return (loop.step < last) & loop.healthy & ~loop.converged

    def body(carry: Any) -> Any:
        before, records = carry
        sampler_key, target, batch, power = run.step_at(before)
        state, info = run.sampler.step(sampler_key, before.state, target, batch)
        after = _after(before, state, info._replace(at_rest=None), options, power)
        if info.at_rest is not None:  # needed here alone, so neither carried nor recorded
            after = after._replace(converged=after.converged | (after.healthy & info.at_rest & (power == 1)))
        row = jax.lax.div(before.step - (last - num_steps), options.record_every)
        return after, jax.tree.map(partial(_write_record, row), records, record(after))

    def record(loop: LoopState) -> tuple[Info, Points | None]:
        return loop.info, loop.state.points if options.record_particles else None

    number = capacity(run, loop)
    records = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), record(loop))
    return jax.lax.while_loop(unfinished, body, (loop, records))


def take_steps(run: Run, loop: LoopState, num_steps: int, recorder: Recorder) -> LoopState:
    """Take up to `num_steps` steps and record them. Where one fails, the state is that before it, not healthy."""
    after, records = advance(run, loop, np.int32(num_steps))
    prefetch((after.step, after.healthy, after.converged, after.faults.moved_back, records))
    healthy = bool(after.healthy)
    while not after.healthy:  # the steps before the one that failed; on some devices the same step may fail sooner
        after, records = advance(run, loop, np.int32(int(after.step) - int(loop.step)))
    first, last, every = int(loop.step), int(after.step), int(run.options.record_every)
    number = -(-(last - first) // every)
    steps = np.minimum(first + every * np.arange(1, number + 1), last).astype(np.int32)
    recorder.add((steps, *jax.tree.map(lambda leaf: on_host(leaf)[:number], records)))
    return after if healthy else after.marked(healthy=False)


def _after(before: LoopState, state: Any, info: Info, options: Options, power: Scalar) -> LoopState:
    """The loop after a step, with long moves clipped.

    A move is clipped where a coordinate changes by more than `max_move` times `longest_move`. A step to numbers that
    are not finite, or the ninth clipped one in a row, has failed.
    """
    start, end = before.state.points, state.points
    lengths = jnp.max(jnp.abs(end - start), axis=1)
    scale = before.longest_move
    limit = jnp.where(scale > 0, cast_like(options.max_move, start) * scale, jnp.inf)
    too_long = lengths > limit
    share = (limit / jnp.where(too_long, lengths, 1))[:, None]
    end = jnp.where(too_long[:, None], start + share * (end - start), end)  # short moves keep every bit
    longest, clipped = reduce_together(("max", "sum"), (lengths, too_long.astype(jnp.int32)))
    longest = jnp.where(jnp.isfinite(longest), jnp.minimum(longest, limit), longest)
    clipped_in_a_row = jnp.where(clipped > 0, before.clipped_in_a_row + 1, 0)
    # The particles were finite before the step, so they are finite after it where the largest move is.
    healthy = jnp.isfinite(longest) & jnp.isfinite(info.velocity_norm) & (clipped_in_a_row <= MAX_CLIPPED_IN_A_ROW)
    largest = jnp.maximum(before.largest_velocity, info.velocity_norm)
    tolerance = jnp.where(power == 1, options.tolerance, 0)  # a tempered step cannot converge
    small = info.velocity_norm <= cast_like(tolerance, largest) * largest
    return before._replace(
        state=state, info=info, step=before.step + healthy.astype(before.step.dtype), healthy=healthy,
        converged=healthy & (tolerance > 0) & (largest > 0) & small, previous=start, largest_velocity=largest,
        longest_move=jnp.maximum(scale, longest), clipped=before.clipped + clipped, clipped_in_a_row=clipped_in_a_row,
    ).with_points(end)  # fmt: skip


def _write_record(row: Int[Array, ""], records: Array, record: Array) -> Array:
    # As an update of a slice: XLA compiles a scatter (`.at[row].set`) into a loop of its own on a CPU.
    return jax.lax.dynamic_update_index_in_dim(records, record, row, 0, allow_negative_indices=False)
