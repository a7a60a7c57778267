"""The one loop: every sampler runs through `fit`."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm.auto import tqdm

from ..core.arrays import as_arrays, as_concrete_data, as_concrete_key
from ..core.checkpoint import CheckpointError
from ..core.errors import explained, shapes
from ..core.interrupt import interruptible
from ..core.multihost import anywhere, on_host, speaks
from ..core.particles import check_particles
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, LogDensityFunction, Points, PyTree, warn_caller
from ..results.result import DivergedError, Faults, History, Result, Status
from ..results.verdict import Verdict
from ..samplers.sampler import AbstractSampler, Info
from ..targets.target import AbstractTarget, as_target, batch_length
from . import run_warnings
from .arguments import as_count, as_number, as_switch, as_tolerance, check_checkpoint, check_functions, check_tempering
from .distributed import loss_of_a_process, several_processes, spread, within
from .end_check import check_run, outcome
from .loop import first_loop
from .resume import Keeper, options_of
from .run import Run, until
from .run_warnings import SteinWarning

_CHUNK_SECONDS = 0.2  # how long a compiled call should take, so that the progress bar moves
_EVERY = 1000  # steps from checkpoint to checkpoint


def fit(
    key: KeyLike,
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
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    progress: bool | None = None,
    longest_move: float | None = 100.0,
    mesh: Any = None,
    throw: bool = True,
) -> Result:
    """Move `particles` towards the target for `num_steps` steps.

    The loop is compiled, the data are its arguments, and the key of step t depends on t alone: neither recording, nor
    a callback, nor a checkpoint, nor going on from an earlier result changes what is computed. Another fit with the
    same functions, sampler and shapes compiles nothing. Ctrl-C ends the run within a fraction of a second, with the
    result so far; a second one raises `KeyboardInterrupt`.

    Args:
        key: `jax.random.key(seed)`; a legacy `jax.random.PRNGKey(seed)` draws the same.
        target: a log density, `log_density(parameters)` or `log_density(parameters, data)`; or a `LogDensity` or
            `Posterior` for constraints and minibatches.
        sampler: such as `svgd()` or `matrix_svgd("mixture", Hessian())`.
        particles: a pytree of arrays with a leading particle axis, in the parameters' own coordinates; or the `Result`
            of an earlier fit, to go on from it: exactly where it stopped with an equal sampler and the same key, from
            its particles with another one. Parameters that the particles share go on as the result has them.
        data: a pytree of arrays with a common leading axis, given to the target. Numbers that JAX's precision cannot
            hold, such as time stamps in float32, are refused; so are rows without a finite log-likelihood.
        num_steps: how many steps to take.
        batch_size: draw so many examples, with replacement, at every step; all of them by default.
        record_every: record the history every so many steps. Beyond 65,536 lines (fewer where particles are kept)
            every second line is let go, and from then on every second one is kept: `history.step` says which.
        record_particles: keep the particles in the history.
        tolerance: stop as converged when the velocity has fallen below this fraction of the largest seen. A fraction,
            because a preconditioner changes the units of the velocity.
        tempering: a schedule of the step count t = 0, 1, … for the power of the target: steps follow p^power, p being
            the density in unconstrained coordinates.
        callback: called as `callback(step, state, info)` every `record_every` steps and at the end, with
            `state.points` in unconstrained coordinates; a true return value ends the run.
        checkpoint: a directory of its own for this run. All that the next step needs is written there, and the same
            call goes on from it: killed at any moment and called again, a run ends bit for bit as if it had never
            stopped (on the same machine and versions). A larger `num_steps` goes further; anything else that differs
            is refused.
        every: steps from checkpoint to checkpoint; 1000 by default. There is one at the end as well.
        longest_move: a move in which some coordinate goes so many times farther than in any move before, and than the
            first particles were spread, is absurd and made shorter: a spike does not throw a particle out of sight.
            `None` lets every move be.
        progress: show a progress bar; by default where there is a terminal.
        mesh: `device_mesh()` spreads the particles over all devices: scores and curvature are computed where the
            particles are, and the sums of a velocity pass round a ring. The numbers are those of one device but for
            rounding. After `steinkern.distributed.initialize()` the devices are those of all processes, which make
            the same call with the same particles, key and data; each gets the whole result, process 0 writes the
            checkpoints, and a callback sees arrays of which it holds a part.
        throw: raise `DivergedError` (which carries the result) where the run cannot go on for numbers that are not
            finite, instead of returning a result whose status says so.

    Where a step gives numbers that are not finite, the particles at fault (where the log density, its gradient or its
    curvature is NaN or infinite) go back by halves of their last step and the step is tried again; after five failures
    in a row a warning names them. Where no particle is at fault the metric could not be factorised, and the step is
    taken with 10² to 10⁸ times the damping. `result.faults` counts it all. More than a quarter of the particles at
    fault, or a step that fails all the same, is divergence.

    Raises:
        ValueError: what was given does not fit together; raised before any long work.
        DivergedError: the particles met numbers that are not finite.
        OSError: the checkpoints' directory cannot be written to, or another run writes to it.
        CheckpointError: an `OSError`; a checkpoint could not be written, for want of room for example. The last good
            one is intact, and `result` of the error is what the run had.
    """
    key = as_concrete_key(key, "For many runs at once, `vmap` the steps of `as_blackjax`.")
    check_functions(sampler, tempering, callback)
    num_steps, record_every = as_count("num_steps", num_steps), as_count("record_every", record_every)
    batch_size = None if batch_size is None else as_count("batch_size", batch_size)
    tolerance = as_tolerance(tolerance, sampler)
    longest_move = None if longest_move is None else as_number("longest_move", longest_move)
    check_checkpoint(checkpoint, every)
    every = _EVERY if every is None else as_count("every", every)
    record_particles, throw = as_switch("record_particles", record_particles), as_switch("throw", throw)
    progress = None if progress is None else as_switch("progress", progress)
    data = as_concrete_data(data)
    bound, points, first = _starting_point(as_target(target), particles)
    as_count("num_steps and the steps before", first + num_steps)
    check_tempering(tempering, first, num_steps)
    if mesh is not None:
        points = spread(points, mesh, (key, data))
    several = several_processes(mesh)
    bound.check_data(data, batch_size)
    sampler.check(points)
    example = bound.batch(data, batch_size)

    def look(points: Points, batch: Batch) -> tuple[Array, Array]:
        return _look(bound, points, batch, sampler.differentiates)

    with _explained(bound, particles, data):
        log_densities, scores = look(points, example)
    _check_first_particles(log_densities, scores, data)
    if batch_size is not None:
        _check_rows(bound, points, data, batch_size)
    warned = (
        _warn(run_warnings.before(points, log_densities, scores, partial(look, batch=example)))
        if sampler.differentiates
        else ()
    )

    continues = isinstance(particles, Result) and _continues(particles, bound, sampler)
    if continues:
        loop = particles.loop._replace(healthy=jnp.asarray(True), converged=jnp.asarray(False))
    else:
        loop = first_loop(sampler, bound, points, example, jnp.asarray(first, jnp.int32))
    warned += _warn(run_warnings.coincident(points, sampler))
    run = Run(
        key, sampler, bound, tempering, data, batch_size, record_every, record_particles, tolerance, longest_move, loop
    )
    keeper = None
    if checkpoint is not None:
        given = particles.loop if continues else _start_of(particles)
        keeper = Keeper(checkpoint, run, given, log_densities, scores, mesh)
        keeper.restore(num_steps)

    # From one step on, whatever is recorded: how long a step takes is not known before, and Ctrl-C waits for a chunk.
    size, longest = 1, record_every if callback else run.longest_chunk
    ended, saved, failure = "", run.done, None
    disable = (None if progress is None else not progress) if speaks(several) else True
    bar = tqdm(total=num_steps, initial=run.done, disable=disable, leave=False)
    locked = keeper.lock if keeper else nullcontext()
    with locked, bar, interruptible() as interrupt, within(mesh), loss_of_a_process(mesh):
        while run.done < num_steps and run.going and not ended:
            start = time.perf_counter()
            to_checkpoint = until(run.done, every) if keeper else num_steps
            taken = run.take(min(size, num_steps - run.done, to_checkpoint))
            bar.update(taken)
            bar.set_postfix_str(f"velocity {float(run.loop.info.velocity_norm):.3g}", refresh=False)
            slow = time.perf_counter() - start >= _CHUNK_SECONDS
            on_line = run.done % record_every == 0 or run.done == num_steps
            enough = False
            if callback is not None and taken and run.going and on_line:
                enough = bool(callback(int(run.loop.step), run.loop.state, run.loop.info))
            slow, enough, interrupted = anywhere(several, slow, enough, interrupt.requested)
            size = size if slow else min(4 * size, longest)
            ended = "Ctrl-C ended" if interrupted else "the callback ended" if enough else ""
            last = ended or run.done == num_steps or not run.going
            if keeper and run.loop.healthy and run.done > saved and (last or run.done % every == 0):
                try:
                    keeper.save()
                except CheckpointError as error:  # in all processes
                    failure, ended = error, "a checkpoint that could not be written ended"
                saved = run.done
    with loss_of_a_process(mesh):
        if any(anywhere(several, interrupt.requested)):  # in the last chunk too: who asks learns that it was heard
            ended = "Ctrl-C ended"
        bound = run.target_now  # `look` is at what the shared parameters, if there are any, have become
        seen: list[tuple[Points, Array]] = []

        def finite(points: Points) -> np.ndarray:
            log_densities, scores = look(points, example)
            seen[:] = [(points, scores)]
            return np.isfinite(on_host(log_densities))

        outside = run.finish(finite)
        now = run.loop.state.points
        last_scores = seen[0][1] if seen[0][0] is now else look(now, example)[1]
        failures: list[str] = []
        verdict = check_run(run, look, last_scores, outside, "Ctrl-C" in ended, failures)
        result = _result(run, outside, ended, keeper is not None and failure is None, verdict)
    if result.faults.stuck:
        warned += _warn([_stuck(result)], result)
    if result.status is Status.STOPPED:
        warned += _warn(run_warnings.beside_target(run, verdict), result)
    elif result.status is not Status.DIVERGED:
        warned += _warn(
            run_warnings.after(run, example, points, scores, last_scores, verdict, bool(warned), failures), result
        )
    result = replace(result, warnings=warned, failed_checks=tuple(failures))
    if failure is not None:
        failure.result = result
        raise failure
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def _starting_point(target: AbstractTarget, particles: PyTree) -> tuple[AbstractTarget, Points, int]:
    """The target bound to the particles' space, the particles as (n, d), and the number of steps behind them."""
    earlier = particles if isinstance(particles, Result) else None
    values = particles if earlier is None else earlier.particles
    check_particles(values)
    values = as_arrays("particles", values) if earlier is None else jax.tree.map(jnp.asarray, values)
    bound = target.bind(jax.tree.map(lambda leaf: leaf[0], values))
    assert bound.space is not None
    bound.space.check(values)
    if earlier is None:
        return bound, _unconstrained(bound, values), 0
    if earlier.target.shared is not None:
        bound = bound.sharing(earlier.target.shared)
    same = eqx.tree_equal(earlier.target.space, bound.space)  # with other constraints the coordinates are others
    points = earlier.points_in_jax() if same else _unconstrained(bound, values)
    return bound, points, 0 if earlier._chains else earlier.num_steps  # transitions of chains are no steps of `fit`


def _start_of(particles: PyTree) -> PyTree:
    """All that a run takes from `particles` where it does not go on from their state."""
    return (particles.points, particles.particles, particles.shared) if isinstance(particles, Result) else particles


def _continues(earlier: Result, target: AbstractTarget, sampler: AbstractSampler) -> bool:
    """Whether a run can go on from all of an earlier result's state, not from its particles alone."""
    if earlier.loop is None:
        return False
    return bool(eqx.tree_equal(earlier.sampler, sampler)) and bool(eqx.tree_equal(earlier.target.space, target.space))


@compiled
def _unconstrained(target: AbstractTarget, particles: PyTree) -> Points:
    assert target.space is not None
    return jax.vmap(target.space.unconstrain)(particles)


@compiled
def _look(target: AbstractTarget, points: Points, batch: Batch, scores: bool) -> tuple[Array, Array]:
    """The log density at every particle, and its gradient there; zeros where it is not to be differentiated."""
    return target.log_densities(points, batch), target.scores(points, batch) if scores else jnp.zeros_like(points)


def _explained(target: AbstractTarget, particles: PyTree, data: Batch) -> AbstractContextManager[None]:
    values = particles.particles if isinstance(particles, Result) else particles
    whole = "one row of `data`" if target.exchangeable else "`data`"
    given = "" if data is None else f", and {whole}, {shapes(data, int(target.exchangeable))}"
    expected = f"`target` must take one particle, {shapes(values)}{given}"
    return explained(expected, "Was it written for other names or shapes?")


def _check_first_particles(log_densities: Array, scores: Array, data: Batch) -> None:
    missing = " NaN in `data` makes it so, and labels that the likelihood does not know (see its method `check`)."
    why = "" if data is None else missing
    smooth = jnp.all(jnp.isfinite(scores), axis=1)
    for good, what in ((jnp.isfinite(log_densities), "log density"), (smooth, "gradient of the log density")):
        bad = int(jnp.sum(~good))
        if bad:
            raise ValueError(
                f"`particles` must start where the target is finite: the {what} is NaN or infinite at {bad} of the "
                f"{len(scores)} initial particles. Start inside the support, or declare it with `support=`.{why}"
            )


def _check_rows(target: AbstractTarget, points: Points, data: Batch, batch_size: int) -> None:
    """Raise where a row of the data has no finite log-likelihood: some later step would draw it.

    It is looked at at one particle, so that it costs a fraction 1/n of an epoch without gradients.
    """
    bad = np.flatnonzero(~on_host(_finite_rows(target, points, data, batch_size)))
    if bad.size:
        raise ValueError(
            f"`data` must have a finite log-likelihood in every row, but it is NaN or infinite at the first particle "
            f"in {bad.size} of {batch_length(data)} rows, the first of them row {bad[0]}. See that labels are such as "
            "the likelihood takes (`likelihood.check(labels)`), and that nothing is missing."
        )


@compiled
def _finite_rows(target: AbstractTarget, points: Points, data: Batch, batch_size: int) -> Array:
    return jax.lax.map(lambda row: jnp.isfinite(target.log_example(points[0], row)), data, batch_size=batch_size)


def _warn(texts: Iterable[str], result: Result | None = None) -> tuple[str, ...]:
    said = tuple(texts)
    for text in said:
        warn_caller(SteinWarning(text, result))
    return said


def _result(run: Run, outside: int, ended: str, kept: bool, verdict: Verdict) -> Result:
    lines, loop, trouble = run.recorder.lines(), run.loop, run.trouble
    history = History(
        step=np.asarray(lines.step),
        velocity_norm=np.asarray(lines.info.velocity_norm),
        step_size=np.asarray(lines.info.step_size),
        stein_ratio=np.asarray(lines.info.stein_ratio),
        particles=_constrained(run.target, jnp.asarray(lines.points), 2) if run.record_particles else None,
    )
    stuck = tuple(int(place) for place in np.flatnonzero(trouble.stuck))
    shortened = int(loop.shortened)
    faults = Faults(int(trouble.frozen), stuck, int(trouble.damped), float(trouble.largest_damping), shortened)
    status, message = outcome(run, outside, ended, kept, verdict)
    points: Points = loop.state.points
    if not points.is_fully_addressable:  # a result is for whoever asked: whole, in every process
        points = jnp.asarray(on_host(points))
    return Result(
        _constrained(run.target, points, 1), points, status, " ".join([message, *faults.sentences()]), int(loop.step),
        history, faults, run.target_now, run.sampler, loop, options_of(run), verdict=verdict,
    )  # fmt: skip


def _stuck(result: Result) -> str:
    which = ", ".join(map(str, result.faults.stuck))
    return (
        f"particle {which} of {len(result.points)} went, more than five steps in a row, to where the target is NaN or "
        "infinite, and was moved back: it stands at an edge that the target does not declare. Declare constraints with "
        "`support=`, or lower the learning rate."
    )


@compiled
def _constrained(target: AbstractTarget, points: Array, batch_axes: int) -> PyTree:
    assert target.space is not None
    constrain = target.space.constrain  # the particles alone: one copy of what they share is enough
    for _ in range(batch_axes):
        constrain = jax.vmap(constrain)
    return constrain(points)
