"""`fit`, the run of any sampler: prepares it, takes the steps, checks the particles and returns a `Result`."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..core.keywords import helpful_keywords
from ..core.multihost import on_host
from ..core.notices import Notice
from ..core.types import Batch, KeyLike, LogDensityFunction, PyTree, SteinWarning, warn_caller
from ..results.result import DivergedError, Faults, History, Result, Status
from ..samplers.sampler import AbstractSampler, Info
from ..targets.constrained import constrained
from ..targets.target import AbstractTarget
from . import double_precision, run_warnings
from .arguments import as_count, as_number, as_switch, as_tolerance, check_checkpoint, check_functions, check_start
from .default import UNTUNED_WORDS, finish, make_plan
from .distributed import loss_of_a_process
from .drive import Ending, drive
from .end_check import EndCheck, check_end, outcome
from .prepare import prepare
from .resume import RunCheckpointer, options_of
from .run import Run

_EVERY = 1000  # steps between two checkpoints


@helpful_keywords
def fit(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    sampler: AbstractSampler | None = None,
    particles: PyTree = None,
    data: Batch = None,
    *,
    num_steps: int | None = None,
    start: PyTree = None,
    num_particles: int | None = None,
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

    Without a sampler everything is chosen: Matrix-SVGD in the metric of the Gaussian nearest to the target, with a step
    size by a rule, until the particles rest. They are then compared with chains held aside: see `result.comparison` and
    `result.warnings`.

    ```python
    result = sk.fit(jax.random.key(0), log_density, start=jnp.zeros(3))
    ```

    The loop is compiled with the data as its arguments, and the random key of step t depends only on t. Recording, a
    callback, a checkpoint and continuing an earlier result therefore do not change the numbers, but for rounding where
    `record_particles` makes another program. Another fit with the same functions, sampler and shapes needs no
    compilation. Ctrl-C ends the run after the steps under way, within about a second or one step, and returns the
    result so far; a second Ctrl-C raises `KeyboardInterrupt`.

    Args:
        key: `jax.random.key(seed)`; a legacy `jax.random.PRNGKey(seed)` gives the same random numbers.
        target: a log density, `log_density(parameters)` or `log_density(parameters, data)`; or a `LogDensity` or
            `Posterior` for constraints and minibatches.
        sampler: such as `svgd()` or `matrix_svgd("mixture", Hessian())`; `None` for `Untuned`, with everything chosen.
        particles: a pytree of arrays with a leading particle axis, in constrained coordinates; or the `Result` of an
            earlier fit to continue. With an equal sampler and the same key the run continues exactly; with another
            sampler it starts from the result's particles. Shared parameters start at their values in the result.
        data: a pytree of arrays with a common leading axis, passed to the target; a pandas or polars DataFrame becomes
            a dictionary of its columns. Numbers that JAX's precision cannot hold, such as time stamps in float32, are
            refused; so are rows without a finite log-likelihood.
        num_steps: the number of steps to take. Without a sampler at most 400 by default, or 8 epochs of minibatches.
        start: in place of `particles`, one particle's parameters, where the log density is finite. The particles are
            drawn from the nearest Gaussian that is found from there, as in `sample`. A NumPyro or PyMC model needs
            neither.
        num_particles: with `start`, the number of particles; 100 by default. Without a sampler at least 100 move, and
            fewer are support points of them.
        batch_size: the number of examples drawn, with replacement, at every step; all examples by default. Without a
            sampler it needs a `Posterior` of at most 200 coordinates, whose scores are then centred at the mode.
        record_every: the number of steps between two records of the history. Beyond 65,536 records (fewer with
            particles) every second one is dropped and the interval doubles; `history.step` holds the recorded steps.
        record_particles: keep the particles in the history.
        tolerance: stop as converged when the velocity falls below this fraction of its largest value. It is relative
            because a preconditioner changes the units of the velocity.
        tempering: a schedule of the step count t = 0, 1, … for the power of the target: steps follow p^power, where p
            is the density in unconstrained coordinates.
        callback: called as `callback(step, state, info)` every `record_every` steps and at the end, with
            `state.points` in unconstrained coordinates; a true return value ends the run.
        checkpoint: a directory for the checkpoints of this run only. The same call resumes from the newest one: a run
            that is killed at any time and called again ends with the same bits as one without interruption (on the
            same machine and versions). A larger `num_steps` extends the run; any other difference is refused.
        every: the number of steps between two checkpoints; 1000 by default. The last step has one as well.
        longest_move: clips a move in which a coordinate changes by more than this many times the largest move so far,
            or the spread of the initial particles if that is larger. `None` disables clipping.
        progress: show a progress bar; by default on a terminal and in a notebook.
        mesh: `device_mesh()` spreads the particles over all devices: each computes the scores and curvature of its
            particles, and the sums of a velocity pass round a ring. The numbers equal those of one device up to
            rounding. After `steinkern.distributed.initialize()` the devices are those of all processes, which make the
            same call with the same particles, key and data. Each process gets the whole result, process 0 writes the
            checkpoints, and a callback gets arrays of which its process holds a part.
        throw: raise `DivergedError`, which carries the result, where the run diverges; `False` returns a result with
            that status.

    Where a step gives numbers that are not finite, the faulty particles (where the log density, its gradient or its
    curvature is NaN or infinite) move back along their last step by halves, and the step is repeated. After five
    failures in a row a warning names them. Where no particle is faulty, the metric could not be factorised, and the
    step is repeated with 10² to 10⁸ times the damping. `result.faults` counts these events. The run diverges where more
    than a quarter of the particles are faulty, or where the step still fails.

    Raises:
        ValueError: the arguments do not fit together; raised before any long computation.
        DivergedError: the particles met numbers that are not finite.
        OSError: the checkpoints' directory cannot be written to, or another run writes to it.
        CheckpointError: an `OSError`; a checkpoint could not be written, for example because the disk is full. The last
            good one is intact, and `result` of the error holds the result so far.
    """
    check_start(sampler, particles, start, num_particles, num_steps, mesh, tempering)
    plan = None
    if sampler is None or particles is None:
        plan = make_plan(
            key, target, sampler, particles, data,
            start=start, num_particles=num_particles, num_steps=num_steps, batch_size=batch_size,
        )  # fmt: skip
        target, sampler, particles, num_steps = plan.run_target, plan.sampler, plan.particles, plan.num_steps
    check_functions(sampler, tempering, callback)
    num_steps = as_count("num_steps", num_steps)
    check_checkpoint(checkpoint, every)
    every = _EVERY if every is None else as_count("every", every)
    throw, progress = as_switch("throw", throw), None if progress is None else as_switch("progress", progress)
    begun = prepare(
        key, target, sampler, particles, data, mesh, num_steps,
        batch_size=None if batch_size is None else as_count("batch_size", batch_size),
        record_every=as_count("record_every", record_every),
        record_particles=as_switch("record_particles", record_particles),
        tolerance=as_tolerance(tolerance, sampler),
        tempering=tempering,
        longest_move=None if longest_move is None else as_number("longest_move", longest_move),
    )  # fmt: skip
    run, said = begun.run, _warn(begun.warnings)
    checkpointer = None
    if checkpoint is not None:
        checkpointer = RunCheckpointer(checkpoint, run, begun.given, begun.log_densities, begun.scores, mesh)
        checkpointer.restore(num_steps)
    if begun.steps is not None and run.done < num_steps:
        begun.steps.compile()
        if num_steps >= run_warnings.LONG_ENOUGH:
            double_precision.begin_compiling(run, begun.particles, begun.batch)
    ending, failure = drive(
        run, num_steps, callback=callback, checkpointer=checkpointer, every=every, progress=progress, mesh=mesh
    )
    with loss_of_a_process(mesh):
        end = check_end(run, begun.batch, ending)
        result = _result(run, end, ending, kept=checkpointer is not None and failure is None)
    words = UNTUNED_WORDS if plan is not None and plan.untuned else {}
    result = replace(result, message=result.message.reword(words))
    if result.faults.stuck:
        said += _warn([run_warnings.stuck(result.faults.stuck, len(result.points)).reword(words)], result)
    if result.status is Status.STOPPED:
        said += _warn(run_warnings.beside_target(run, end.verdict, ended_early=True), result)
    elif result.status is not Status.DIVERGED:
        said += _warn(run_warnings.after(run, begun.batch, begun.points, begun.scores, end, told=bool(said)), result)
    result = replace(result, warnings=said, failed_checks=tuple(end.failures))
    if plan is not None and plan.untuned:
        result = finish(key, result, plan, data, batch_size)
        _warn([notice for notice in result.warnings if notice not in said], result)
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
        particles=constrained(run.target, jax.device_put(lines.points), 2) if run.record_particles else None,
    )
    stuck = tuple(int(place) for place in np.flatnonzero(counters.stuck))
    faults = Faults(
        int(counters.moved_back), stuck, int(counters.damped), float(counters.largest_damping), int(loop.shortened)
    )
    status, message = outcome(run, end, ending, kept)
    particles, points = jax.tree.map(_whole, (end.particles, loop.state.points))
    return Result(
        particles, points, status, faults.told_after(message), int(loop.step),
        history, faults, run.target_now, run.sampler, loop, options_of(run), verdict=end.verdict,
    )  # fmt: skip


def _whole(array: Array) -> Array:
    """An array that every process has, where some of it lies with others."""
    return array if array.is_fully_addressable else jax.device_put(on_host(array))
