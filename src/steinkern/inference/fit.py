"""`fit`: one loop for every sampler. Prepare, drive, check, result."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.multihost import on_host
from ..core.notices import Notice
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, LogDensityFunction, Points, PyTree, SteinWarning, warn_caller
from ..results.result import DivergedError, Faults, History, Result, Status
from ..samplers.sampler import AbstractSampler, Info
from ..targets.target import AbstractTarget
from . import run_warnings
from .arguments import as_count, as_number, as_switch, as_tolerance, check_checkpoint, check_functions
from .distributed import loss_of_a_process
from .drive import Ending, drive
from .end_check import EndCheck, check_end, outcome
from .prepare import prepare
from .resume import RunCheckpointer, options_of
from .run import Run

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
        longest_move: clips a move in which some coordinate goes so many times farther than in any move before, and
            than the first particles were spread. `None` disables clipping.
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
    check_functions(sampler, tempering, callback)
    num_steps = as_count("num_steps", num_steps)
    check_checkpoint(checkpoint, every)
    every = _EVERY if every is None else as_count("every", every)
    throw, progress = as_switch("throw", throw), None if progress is None else as_switch("progress", progress)
    start = prepare(
        key, target, sampler, particles, data, mesh, num_steps,
        batch_size=None if batch_size is None else as_count("batch_size", batch_size),
        record_every=as_count("record_every", record_every),
        record_particles=as_switch("record_particles", record_particles),
        tolerance=as_tolerance(tolerance, sampler),
        tempering=tempering,
        longest_move=None if longest_move is None else as_number("longest_move", longest_move),
    )  # fmt: skip
    run, said = start.run, _warn(start.warnings)
    checkpointer = None
    if checkpoint is not None:
        checkpointer = RunCheckpointer(checkpoint, run, start.given, start.log_densities, start.scores, mesh)
        checkpointer.restore(num_steps)
    ending, failure = drive(
        run, num_steps, callback=callback, checkpointer=checkpointer, every=every, progress=progress, mesh=mesh
    )
    with loss_of_a_process(mesh):
        end = check_end(run, start.batch, ending)
        result = _result(run, end, ending, kept=checkpointer is not None and failure is None)
    if result.faults.stuck:
        said += _warn([run_warnings.stuck(result.faults.stuck, len(result.points))], result)
    if result.status is Status.STOPPED:
        said += _warn(run_warnings.beside_target(run, end.verdict, ended_early=True), result)
    elif result.status is not Status.DIVERGED:
        said += _warn(run_warnings.after(run, start.batch, start.points, start.scores, end, told=bool(said)), result)
    result = replace(result, warnings=said, failed_checks=tuple(end.failures))
    if failure is not None:
        failure.result = result
        raise failure
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def _warn(notices: Iterable[Notice], result: Result | None = None) -> tuple[Notice, ...]:
    said = tuple(notices)
    for notice in said:
        warn_caller(SteinWarning(notice, result))
    return said


def _result(run: Run, end: EndCheck, ending: Ending, kept: bool) -> Result:
    lines, loop, counters = run.recorder.lines(), run.loop, run.faults
    history = History(
        step=np.asarray(lines.step),
        velocity_norm=np.asarray(lines.info.velocity_norm),
        step_size=np.asarray(lines.info.step_size),
        stein_ratio=np.asarray(lines.info.stein_ratio),
        particles=_constrained(run.target, jnp.asarray(lines.points), 2) if run.record_particles else None,
    )
    stuck = tuple(int(place) for place in np.flatnonzero(counters.stuck))
    faults = Faults(
        int(counters.moved_back), stuck, int(counters.damped), float(counters.largest_damping), int(loop.shortened)
    )
    status, message = outcome(run, end, ending, kept)
    points: Points = loop.state.points
    if not points.is_fully_addressable:  # every process gets the whole result
        points = jnp.asarray(on_host(points))
    return Result(
        _constrained(run.target, points, 1), points, status, faults.told_after(message), int(loop.step),
        history, faults, run.target_now, run.sampler, loop, options_of(run), verdict=end.verdict,
    )  # fmt: skip


@compiled
def _constrained(target: AbstractTarget, points: Array, batch_axes: int) -> PyTree:
    constrain = target.bound_space.constrain  # the particles alone: one copy of what they share is enough
    for _ in range(batch_axes):
        constrain = jax.vmap(constrain)
    return constrain(points)
