"""`fit`, the run of any sampler: prepares it, takes the steps, checks the particles and returns a `Result`."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..core.multihost import on_host
from ..core.types import Batch, KeyLike, LogDensityFunction, PyTree
from ..results.outcome import Diagnostics, Status
from ..results.result import DivergedError, Result
from ..samplers.sampler import AbstractSampler, Info
from ..targets.target import AbstractTarget
from .arguments import as_bool, as_count, as_positive, as_tolerance, check_checkpoint, check_functions, check_start
from .checkpoint import Checkpointer
from .default import Choice, choose, reference_chains
from .diagnostics import measure
from .distributed import explain_lost_process
from .history import Recorder, max_records
from .judge import issue, judge
from .loop import Options
from .prepare import prepare
from .recovery import count_faults, divergence, restore_finite_particles
from .rounding import check_run_rounding
from .run import CALLBACK, CTRL_C, advance_run, ending


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
    checkpoint_every: int | None = None,
    progress: bool | None = None,
    max_move: float | None = 100.0,
    mesh: Any = None,
    throw: bool = True,
) -> Result:
    """Move `particles` towards the target for `num_steps` steps.

    Without a sampler everything is chosen: Matrix-SVGD in the metric of the Gaussian nearest to the target, with an
    adaptive step size, until the particles are at rest. They are then compared with reference chains: see
    `result.diagnostics` and `result.warnings`.

    ```python
    result = sk.fit(jax.random.key(0), log_density, start=jnp.zeros(3))
    ```

    The loop is compiled with the data as its arguments, and the random key of step t depends only on t. Recording, a
    callback, a checkpoint and continuing an earlier result therefore do not change the numbers, except for rounding
    where `record_particles` compiles a different program. Another fit with the same functions, sampler and shapes needs
    no compilation. Ctrl-C ends the run after the steps under way, within about a second or one step, and returns the
    result so far; a second Ctrl-C raises `KeyboardInterrupt`.

    Args:
        key: `jax.random.key(seed)`; a legacy `jax.random.PRNGKey(seed)` gives the same random numbers.
        target: a log density, `log_density(parameters)` or `log_density(parameters, data)`; or a `LogDensity` or
            `Posterior` for constraints and minibatches.
        sampler: such as `svgd()` or `matrix_svgd("mixture", Hessian())`; `None` for `AutoSVGD`, with everything chosen.
            Without one, plates that a NumPyro model subsamples run in full.
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
        num_particles: with `start`, the number of particles; 100 by default.
        batch_size: the number of examples drawn, with replacement, at every step; all examples by default. Without a
            sampler it needs a `Posterior` of at most 200 coordinates, which is then centered at the mode.
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
        checkpoint_every: the number of steps between two checkpoints; 1000 by default. The last step has one as well.
        max_move: clips a move in which a coordinate changes by more than this many times the largest move so far,
            or the spread of the initial particles if that is larger. `None` disables clipping.
        progress: show a progress bar; by default on a terminal and in a notebook.
        mesh: `device_mesh()` spreads the particles over all devices: each computes the scores and curvature of its
            particles, and the sums of a velocity pass round a ring. The numbers equal those of one device up to
            rounding. After `jax.distributed.initialize()` the devices are those of all processes, which make the
            same call with the same particles, key and data. Each process gets the whole result, process 0 writes the
            checkpoints, and a callback gets arrays of which its process holds a part.
        throw: raise `DivergedError`, which carries the result, where the run diverges; `False` returns a result with
            that status.

    Where a step gives numbers that are not finite, the faulty particles (where the log density, its gradient or its
    curvature is NaN or infinite) move back along their last step by halves, and the step is repeated. After five
    failures in a row a warning names them. Where no particle is faulty, the metric could not be factorized, and the
    step is repeated with 10² to 10⁸ times the damping. `result.diagnostics.faults` counts these events. The run
    diverges where more than a quarter of the particles are faulty, or where the step still fails.

    Raises:
        ValueError: the arguments do not fit together; raised before any long computation.
        DivergedError: the particles met numbers that are not finite.
        OSError: the checkpoints' directory cannot be written to, or another run writes to it.
        CheckpointError: an `OSError` and a `ValueError`. A checkpoint could not be written, for example because the
            disk is full: the last good one is intact, and `result` of the error holds the result so far. Or the
            checkpoint is of another run: `differences` of the error names what differs.
    """
    check_start(sampler, particles, start, num_particles, num_steps, mesh, tempering)
    check_functions(sampler, tempering, callback)
    if sampler is None or particles is None:
        choice = choose(key, target, sampler, particles, data, start, num_particles, num_steps, batch_size)
    else:
        choice = Choice(target, sampler, particles, as_count("num_steps", num_steps))
    check_checkpoint(checkpoint, checkpoint_every)
    checkpoint_every = 1000 if checkpoint_every is None else as_count("checkpoint_every", checkpoint_every)
    throw, progress = as_bool("throw", throw), None if progress is None else as_bool("progress", progress)
    options = Options(
        choice.num_steps,
        batch_size=None if batch_size is None else as_count("batch_size", batch_size),
        record_every=as_count("record_every", record_every),
        record_particles=as_bool("record_particles", record_particles),
        tolerance=0.0 if tolerance is None else as_tolerance(tolerance, choice.sampler),
        tempering=tempering,
        max_move=np.inf if max_move is None else as_positive("max_move", max_move),
    )
    run, loop, first, notices = prepare(key, choice.target, choice.sampler, choice.particles, data, mesh, options)
    issue(notices)
    recorder = Recorder(
        int(run.first_step), int(options.record_every), max_records(first.scores.size if record_particles else 4)
    )
    checkpointer = None
    if checkpoint is not None:
        checkpointer = Checkpointer(checkpoint, checkpoint_every, run, loop, first, choice.particles)
    with checkpointer or nullcontext():
        if checkpointer:
            loop = checkpointer.restore(loop, recorder)
        loop, ended_by, failure = advance_run(run, loop, recorder, callback, checkpointer, progress)
    with explain_lost_process(mesh):
        loop, last, num_outside = restore_finite_particles(run, loop, recorder)
        resumable = checkpointer is not None and failure is None
        status, message = divergence(run, loop, last, num_outside) or ending(loop, ended_by, resumable)
        warnings, diagnostics = notices, Diagnostics(not_checked=("the particles (the run diverged)",))
        if status is not Status.DIVERGED:
            warnings += check_run_rounding(run, loop, last)
            diagnostics = measure(run, loop, first, last, interrupted=ended_by == CTRL_C)
            if choice.compares and ended_by in ("", CALLBACK):
                diagnostics = reference_chains(key, choice, run, loop, last.particles, diagnostics)
        diagnostics = replace(diagnostics, faults=count_faults(loop))
        bound = run.target_at(loop)
        particles, points = jax.tree.map(_gather, (last.particles, loop.state.points))
        result = judge(Result(
            particles, points, status, message, int(loop.step), recorder.history(bound), diagnostics, bound,
            run.sampler, loop, run.settings(), warnings, shared=bound.shared,
        ))  # fmt: skip
    issue(result.warnings[len(notices) :], result)
    if failure is not None:
        failure.result = result
        raise failure
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def _gather(array: Array) -> Array:
    """The whole array in every process, gathered where other processes hold shards of it."""
    return array if array.is_fully_addressable else jax.device_put(on_host(array))
