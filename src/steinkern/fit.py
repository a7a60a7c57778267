"""The one loop: every sampler runs through `fit`."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int
from tqdm.auto import tqdm

from ._types import (
    Batch,
    Key,
    LogDensityFunction,
    Points,
    PyTree,
    Scalar,
    check_callable,
    check_count,
    check_positive,
    like,
)
from .particles import check_particles
from .result import DivergedError, History, Result, Status
from .sampler import AbstractSampler, Info
from .target import AbstractTarget, as_target

_CAPACITY = 1024  # records a compiled call can return
_CHUNK_SECONDS = 0.2  # how long a compiled call should take, so that the progress bar moves


class LoopState(NamedTuple):
    """Everything the next step needs, besides the key, the target and the data."""

    state: Any
    info: Info
    step: Int[Array, ""]
    largest_velocity: Scalar
    healthy: Bool[Array, ""]
    converged: Bool[Array, ""]


class Record(NamedTuple):
    """One line of the history."""

    step: Array
    info: Info
    points: Array | None


def fit(
    key: Key,
    target: AbstractTarget | LogDensityFunction,
    sampler: AbstractSampler,
    particles: PyTree,
    data: Batch = None,
    *,
    num_steps: int,
    batch_size: int | None = None,
    record_every: int = 1,
    record_particles: bool = False,
    tolerance: float | None = None,
    tempering: Callable[[Array], Array] | None = None,
    callback: Callable[[int, Any, Info], Any] | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Result:
    """Move `particles` towards the target for `num_steps` steps.

    The loop is compiled, the data are its arguments, and the key of step t depends on t alone: neither recording, nor
    a callback, nor going on from an earlier result changes what is computed. Another fit with the same functions,
    sampler and shapes compiles nothing.

    Args:
        key: `jax.random.key(seed)`.
        target: a log density, `log_density(parameters)` or `log_density(parameters, data)`; or a `LogDensity` or
            `Posterior` for constraints and minibatches.
        sampler: such as `svgd()` or `matrix_svgd("mixture", Hessian())`.
        particles: a pytree of arrays with a leading particle axis, in the parameters' own coordinates; or the `Result`
            of an earlier fit, to go on from it: exactly where it stopped with an equal sampler and the same key, from
            its particles with another one.
        data: a pytree of arrays with a common leading axis, given to the target.
        num_steps: how many steps to take.
        batch_size: draw so many examples, with replacement, at every step; all of them by default.
        record_every: record the history every so many steps.
        record_particles: keep the particles in the history.
        tolerance: stop as converged when the velocity has fallen below this fraction of the largest seen. A fraction,
            because a preconditioner changes the units of the velocity.
        tempering: a schedule of the step count t = 0, 1, … for the power of the target: steps follow p^power.
        callback: called as `callback(step, state, info)` after every record, with `state.points` in unconstrained
            coordinates; a true return value ends the run.
        progress: show a progress bar; by default where there is a terminal.
        throw: raise `DivergedError` (which carries the result) on numbers that are not finite, instead of returning a
            result whose status says so.

    Raises:
        ValueError: what was given does not fit together; raised before any long work.
        DivergedError: the particles met numbers that are not finite.
    """
    _check_options(key, sampler, tempering, callback, num_steps, batch_size, record_every, tolerance)
    bound, loop_points, first = _starting_point(as_target(target), particles)
    data = jax.tree.map(jnp.asarray, data)
    bound.check_data(data, batch_size)
    sampler.check(loop_points)
    example = bound.batch(data, batch_size)
    _check_first_particles(bound, loop_points, example, sampler.differentiates)

    if isinstance(particles, Result) and _continues(particles, bound, sampler):
        loop = particles.loop._replace(healthy=jnp.asarray(True), converged=jnp.asarray(False))
    else:
        loop = _first_loop(sampler, bound, loop_points, example, jnp.asarray(first, jnp.int32))
    capacity = _capacity(loop_points) if record_particles else _CAPACITY

    def advance(loop: LoopState, steps: int) -> tuple[LoopState, Record]:
        return _advance(
            key, sampler, bound, tempering, data, loop, jnp.asarray(steps), jnp.asarray(record_every),
            jnp.asarray(-1.0 if tolerance is None else tolerance), batch_size, capacity, record_particles,
        )  # fmt: skip

    records: list[Record] = []
    stopped = False
    longest = record_every if callback else record_every * capacity
    with tqdm(total=num_steps, disable=None if progress is None else not progress, leave=False) as bar:
        for steps in _chunks(num_steps, record_every, longest):
            before = int(loop.step)
            loop, record = advance(loop, steps)
            taken = int(loop.step) - before
            records.append(_filled(record, -(-taken // record_every)))
            bar.update(taken)
            bar.set_postfix_str(f"velocity {float(loop.info.velocity_norm):.3g}", refresh=False)
            if not loop.healthy or loop.converged:
                break
            if callback is not None and callback(int(loop.step), loop.state, loop.info):
                stopped = True
                break
    bound = sampler.target_at(loop.state, bound)
    finite, _ = _first_look(bound, loop.state.points, example, sampler.differentiates)
    result = _result(bound, sampler, loop, records, record_particles, int(jnp.sum(~finite)), stopped)
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


@eqx.filter_jit
def _advance(
    key: Key,
    sampler: AbstractSampler,
    target: AbstractTarget,
    tempering: Callable[[Array], Array] | None,
    data: Batch,
    loop: LoopState,
    num_steps: Int[Array, ""],
    record_every: Int[Array, ""],
    tolerance: Scalar,
    batch_size: int | None,
    capacity: int,
    keep_points: bool,
) -> tuple[LoopState, Record]:
    """Up to `num_steps` steps, fewer on divergence or convergence; the counts are traced, so one program serves all."""
    last = loop.step + num_steps

    def going(carry: tuple[LoopState, Record]) -> Array:
        loop, _ = carry
        return (loop.step < last) & loop.healthy & ~loop.converged

    def body(carry: tuple[LoopState, Record]) -> tuple[LoopState, Record]:
        before, records = carry
        batch_key, sampler_key = jr.split(jr.fold_in(key, before.step))
        batch = target.batch(data, batch_size, batch_key)
        power = jnp.ones(()) if tempering is None else tempering(before.step)
        now = target if tempering is None else target.tempered(power)
        state, info = sampler.step(sampler_key, before.state, now, batch)
        after = _judged(before, state, info, jnp.where(power == 1, tolerance, -1))  # rest at another power is no rest
        slot = (before.step - (last - num_steps)) // record_every
        line = Record(after.step, after.info, after.state.points if keep_points else None)
        return after, jax.tree.map(lambda all_, one: all_.at[slot].set(one), records, line)

    line = Record(loop.step, loop.info, loop.state.points if keep_points else None)
    records = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), line)
    return jax.lax.while_loop(going, body, (loop, records))


def _judged(before: LoopState, state: Any, info: Info, tolerance: Scalar) -> LoopState:
    """The loop after a step; a step to numbers that are not finite is not taken."""
    healthy = jnp.all(jnp.isfinite(state.points)) & jnp.isfinite(info.velocity_norm)
    state, info = jax.tree.map(
        lambda new, old: jnp.where(healthy, new, old), (state, info), (before.state, before.info)
    )
    largest = jnp.maximum(before.largest_velocity, info.velocity_norm)
    converged = healthy & (tolerance > 0) & (largest > 0) & (info.velocity_norm <= like(tolerance, largest) * largest)
    return LoopState(state, info, before.step + healthy.astype(before.step.dtype), largest, healthy, converged)


def _check_options(
    key: Key,
    sampler: Any,
    tempering: Any,
    callback: Any,
    num_steps: int,
    batch_size: int | None,
    record_every: int,
    tolerance: float | None,
) -> None:
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise ValueError(f"`key` must be one PRNG key, such as `jax.random.key(0)`, got {key!r}.")
    if not isinstance(sampler, AbstractSampler):
        raise ValueError(f"`sampler` must be a sampler such as `steinkern.svgd()`, got {sampler!r}.")
    if callback is not None:
        check_callable("callback", callback, "a function of (step, state, info)")
    if tempering is not None:
        check_callable("tempering", tempering, "a schedule, a function of the step")
    check_count("num_steps", num_steps)
    check_count("record_every", record_every)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
        if tolerance >= 1:
            raise ValueError(f"`tolerance` must be a fraction of the largest velocity, below 1, got {tolerance}.")
        if not sampler.deterministic:
            raise ValueError(
                f"`tolerance` has no meaning for {type(sampler).__name__}, whose particles never come to rest. "
                "Leave it out and choose `num_steps`."
            )


def _starting_point(target: AbstractTarget, particles: PyTree) -> tuple[AbstractTarget, Points, int]:
    """The target bound to the particles' space, the particles as (n, d), and the number of steps behind them."""
    earlier = particles if isinstance(particles, Result) else None
    values = particles if earlier is None else earlier.particles
    check_particles(values)
    values = jax.tree.map(jnp.asarray, values)
    bound = target.bind(jax.tree.map(lambda leaf: leaf[0], values))
    assert bound.space is not None
    bound.space.check(values)
    if earlier is None:
        return bound, _unconstrained(bound, values), 0
    if bound.shared is not None and earlier.target.shared is not None:
        bound = bound.sharing(earlier.target.shared)
    same = eqx.tree_equal(earlier.target.space, bound.space)  # with other constraints the coordinates are others
    return bound, earlier.points if same else _unconstrained(bound, values), earlier.num_steps


def _continues(earlier: Result, target: AbstractTarget, sampler: AbstractSampler) -> bool:
    """Whether a run can go on from all of an earlier result's state, not from its particles alone."""
    if earlier.loop is None:
        return False
    return bool(eqx.tree_equal(earlier.sampler, sampler)) and bool(eqx.tree_equal(earlier.target.space, target.space))


@eqx.filter_jit
def _unconstrained(target: AbstractTarget, particles: PyTree) -> Points:
    assert target.space is not None
    return jax.vmap(target.space.unconstrain)(particles)


@eqx.filter_jit
def _first_look(target: AbstractTarget, points: Points, batch: Batch, scores: bool) -> tuple[Array, Array]:
    finite = jnp.isfinite(target.log_densities(points, batch))
    return finite, jnp.all(jnp.isfinite(target.scores(points, batch)), axis=1) if scores else jnp.ones_like(finite)


def _check_first_particles(target: AbstractTarget, points: Points, batch: Batch, differentiates: bool) -> None:
    values, scores = (int(jnp.sum(~finite)) for finite in _first_look(target, points, batch, differentiates))
    for bad, what in ((values, "log density"), (scores, "gradient of the log density")):
        if bad:
            raise ValueError(
                f"`particles` must start where the target is finite: the {what} is NaN or infinite at {bad} of the "
                f"{points.shape[0]} initial particles. Start inside the support, or declare it with `support=`."
            )


@eqx.filter_jit
def _first_loop(
    sampler: AbstractSampler, target: AbstractTarget, points: Points, batch: Batch, step: Int[Array, ""]
) -> LoopState:
    zero = jnp.zeros((), points.dtype)
    state = sampler.init(target, points, batch)
    return LoopState(state, Info(zero, zero, zero), step, zero, jnp.asarray(True), jnp.asarray(False))


def _capacity(points: Points) -> int:
    """How many records of all particles one compiled call may return."""
    return int(np.clip(2**24 // points.size, 1, _CAPACITY))


def _chunks(num_steps: int, record_every: int, longest: int) -> Iterator[int]:
    """Numbers of steps that add up to `num_steps`, grown until a chunk takes a fraction of a second."""
    size, left = record_every, num_steps
    while left > 0:
        steps = min(size, left)
        start = time.perf_counter()
        yield steps
        left -= steps
        if time.perf_counter() - start < _CHUNK_SECONDS:
            size = min(4 * size, longest)


def _filled(record: Record, count: int) -> Record:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], record)


def _result(
    target: AbstractTarget,
    sampler: AbstractSampler,
    loop: LoopState,
    records: list[Record],
    keep_points: bool,
    outside: int,
    stopped: bool,
) -> Result:
    lines = jax.tree.map(lambda *leaves: np.concatenate(leaves), *records)
    history = History(
        step=lines.step,
        velocity_norm=lines.info.velocity_norm,
        step_size=lines.info.step_size,
        stein_ratio=lines.info.stein_ratio,
        particles=_constrained(target, jnp.asarray(lines.points), 2) if keep_points else None,
    )
    status, message = _verdict(loop, outside, stopped)
    points = loop.state.points
    return Result(
        _constrained(target, points, 1), points, status, message, int(loop.step), history, target, sampler, loop
    )


@eqx.filter_jit
def _constrained(target: AbstractTarget, points: Array, batch_axes: int) -> PyTree:
    assert target.space is not None
    constrain = target.space.constrain  # the particles alone: one copy of what they share is enough
    for _ in range(batch_axes):
        constrain = jax.vmap(constrain)
    return constrain(points)


def _verdict(loop: LoopState, outside: int, stopped: bool) -> tuple[Status, str]:
    """How the run ended: `outside` particles stand where the log density is not finite."""
    if loop.healthy and outside:
        return Status.DIVERGED, (
            f"the log density is NaN or infinite at {outside} particles after {int(loop.step)} steps. Likely causes: "
            "(a) they left the support, where its gradient is still finite: declare constraints with `support=`; "
            "(b) the step size is too large: lower the learning rate."
        )
    if not loop.healthy:
        return Status.DIVERGED, (
            f"step {int(loop.step) + 1} gave numbers that are not finite; the particles are those before it. "
            "Likely causes: "
            "(a) the step size is too large: lower the learning rate, or use an adaptive step rule; "
            "(b) the log density or its gradient is NaN or infinite where the particles went: declare constraints with "
            "`support=`, or start closer; "
            "(c) the curvature is singular or indefinite: raise `damping`, or use a repaired Hessian; "
            "(d) float32 is too coarse for the target: enable x64."
        )
    if loop.converged:
        ratio = float(loop.info.velocity_norm / loop.largest_velocity)
        return Status.CONVERGED, f"the velocity fell to {ratio:.2g} of its largest value after {int(loop.step)} steps."
    if stopped:
        return Status.FINISHED, f"the callback ended the run after {int(loop.step)} steps."
    return Status.FINISHED, f"all steps were taken; the velocity is {float(loop.info.velocity_norm):.3g}."
