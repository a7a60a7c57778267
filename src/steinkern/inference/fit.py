"""`fit`, the run of any sampler: prepares it, takes the steps, checks the particles and returns a `Result`."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..core.messages import Notice, quantity
from ..core.multihost import on_host, placed_like
from ..core.types import Batch, KeyLike, LogDensityFunction, PyTree
from ..results.outcome import Diagnostics, Status
from ..results.result import DivergedError, Result
from ..samplers.auto import AutoSVGD
from ..samplers.sampler import AbstractSampler, Info
from ..targets.target import AbstractTarget
from .arguments import as_count, as_number, as_switch, as_tolerance, check_checkpoint, check_functions, check_start
from .checkpoint import Checkpointer
from .default import Choice, choose, reference_chains
from .diagnostics import measure
from .distributed import loss_of_a_process
from .drive import Ending, drive
from .judge import SAMPLE, Judgement, RunFacts, issue, judge
from .loop import LONG_STEPS, Evaluation, evaluate
from .prepare import Start, prepare
from .recovery import leave_finite
from .rounding import check_rounding
from .run import Run

_EVERY = 1000  # steps between two checkpoints
_ENDED_BY = {
    Ending.CALLBACK: "the callback", Ending.INTERRUPTED: "Ctrl-C",
    Ending.NOT_SAVED: "a checkpoint that could not be written",
}  # fmt: skip
_STOPPED = (Ending.INTERRUPTED, Ending.NOT_SAVED)


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

    Without a sampler everything is chosen: Matrix-SVGD in the metric of the Gaussian nearest to the target, with a step
    size by a rule, until the particles rest. They are then compared with reference chains: see `result.diagnostics` and
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
        sampler: such as `svgd()` or `matrix_svgd("mixture", Hessian())`; `None` for `AutoSVGD`, with everything chosen.
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
    failures in a row a warning names them. Where no particle is faulty, the metric could not be factorised, and the
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
    checkpoint_every = _EVERY if checkpoint_every is None else as_count("checkpoint_every", checkpoint_every)
    throw, progress = as_switch("throw", throw), None if progress is None else as_switch("progress", progress)
    begun = prepare(
        key, choice.target, choice.sampler, choice.particles, data, mesh, choice.num_steps,
        batch_size=None if batch_size is None else as_count("batch_size", batch_size),
        record_every=as_count("record_every", record_every),
        record_particles=as_switch("record_particles", record_particles),
        tolerance=as_tolerance(tolerance, choice.sampler),
        tempering=tempering,
        max_move=None if max_move is None else as_number("max_move", max_move),
    )  # fmt: skip
    run = begun.run
    issue(begun.warnings)
    checkpointer = None
    if checkpoint is not None:
        checkpointer = Checkpointer(checkpoint, begun, mesh)
        checkpointer.restore(choice.num_steps)
    ending, failure = drive(
        run,
        choice.num_steps,
        callback=callback,
        checkpointer=checkpointer,
        checkpoint_every=checkpoint_every,
        progress=progress,
        mesh=mesh,
    )
    with loss_of_a_process(mesh):
        seen, outside, moved_back = leave_finite(run, begun.batch)
        failed = _failure(run, outside, moved_back)
        diagnostics = Diagnostics(not_checked=("the particles (the run diverged)",))
        if failed is None:
            diagnostics = measure(run, seen, interrupted=ending is Ending.INTERRUPTED)
        compares = choice.compares and failed is None and ending not in _STOPPED
        if compares:
            diagnostics = reference_chains(key, choice, run, seen.particles, diagnostics)
        diagnostics = replace(diagnostics, faults=run.count_faults())
        facts = _facts(begun, seen, ending, failed, compares, checkpointer is not None and failure is None)
        result = _result(run, seen, diagnostics, judge(diagnostics, facts))
    issue(result.warnings[len(begun.warnings) :], result)
    if failure is not None:
        failure.result = result
        raise failure
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def _result(run: Run, seen: Evaluation, diagnostics: Diagnostics, judgement: Judgement) -> Result:
    loop, target = run.loop, run.target_now
    particles, points = jax.tree.map(_whole, (seen.particles, loop.state.points))
    return Result(
        particles, points, judgement.status, judgement.message, int(loop.step), run.history(), diagnostics, target,
        run.sampler, loop, run.options(), judgement.warnings, shared=target.shared,
    )  # fmt: skip


def _facts(
    begun: Start, seen: Evaluation, ending: Ending, failed: Notice | None, compares: bool, kept: bool
) -> RunFacts:
    """The facts of a run that has ended.

    Args:
        begun: the run.
        seen: the target at its last particles.
        ending: how the loop ended.
        failed: how the run diverged.
        compares: whether its particles are to be compared with reference chains.
        kept: whether its last step is in a checkpoint.
    """
    run, sampler = begun.run, begun.run.sampler
    loop, lines = run.loop, run.recorder.lines()
    moves = np.asarray(lines.info.velocity_norm, np.float64) * np.asarray(lines.info.step_size, np.float64)
    spread = float(begun.seen.spread)
    velocity = float(loop.info.velocity_norm)
    return RunFacts(
        loop.state.points.shape,
        run.target.space.layout.coordinate_name,
        num_steps=int(loop.step),
        failed=failed,
        ended_by=_ENDED_BY.get(ending, ""),
        stopped=ending in _STOPPED,
        way_on="the same call goes on from its checkpoint" if kept else "give this result to `fit` to go on from it",
        converged=bool(loop.converged),
        velocity=velocity,
        velocity_fraction=velocity / (float(loop.largest_velocity) or 1.0),
        tolerance=run.tolerance,
        path=float(np.mean(moves)) * run.done / spread if len(moves) and spread > 0 else np.inf,
        deterministic=sampler.traits.deterministic,
        interacting=sampler.traits.interacting,
        samples_target=sampler.traits.samples_target,
        minibatches=bool(run.target.sampled_rows(run.data, run.batch_size)),
        compares=compares,
        flat=() if failed is not None or begun.warnings else _flat_coordinates(begun, seen),
        notices=begun.warnings if failed is not None else (*begun.warnings, *_check_rounding(run, seen)),
    )


def _check_rounding(run: Run, seen: Evaluation) -> tuple[Notice, ...]:
    """Whether float32 is too coarse. Log densities count where they are used, for weights or reference chains."""
    points, sampler = run.loop.state.points, run.sampler
    if points.dtype != np.float32 or len(points) < 2 or not sampler.traits.samples_target:
        return ()
    coarse, masks = jax.tree.map(on_host, (seen.coarse, seen.coarse_particles))
    used = isinstance(sampler, AutoSVGD) or not sampler.traits.differentiates
    name_of = run.target.space.layout.coordinate_name
    return check_rounding(coarse, masks, name_of, on_host(seen.log_densities) if used else None)


def _flat_coordinates(begun: Start, seen: Evaluation) -> tuple[int, ...]:
    """The coordinates along which the gradient is zero at all first and last particles, and beside them."""
    run = begun.run
    if not run.sampler.traits.differentiates or run.batch_size is not None:  # other rows may depend on the coordinate
        return ()
    slopes = on_host(begun.seen.slopes) | on_host(seen.slopes)
    if not slopes.all():  # particles at a mode have a zero gradient too
        points = run.loop.state.points
        x = on_host(points).astype(np.float64)
        length = np.where(x.std(axis=0) > 0, x.std(axis=0), 0.1 * np.maximum(np.max(np.abs(x), axis=0), 1))
        offset = length * np.random.default_rng(1).uniform(0.3, 0.7, size=x.shape)
        beside = placed_like((x + offset).astype(points.dtype), points)
        slopes |= on_host(evaluate(run.sampler, run.target_now, beside, begun.batch).slopes)
    return tuple(int(place) for place in np.flatnonzero(~slopes))


def _failure(run: Run, outside: int, moved_back: bool) -> Notice | None:
    """How a run diverged; `None` where it did not."""
    loop = run.loop
    if loop.healthy and not outside:
        return None
    steps = quantity(int(loop.step), "step")
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
            f"the log density, or its gradient, is NaN or infinite at {quantity(outside, 'particle')} after {steps}"
            f"{back}. Likely causes: (a) they left the support, where its gradient is still finite: declare "
            f"constraints with `support=`; (b) the step size is too large: {smaller}.",
        )
    what = "gave numbers that are not finite"
    if loop.long_in_a_row >= LONG_STEPS:
        what = (
            f"leads to numbers that are not finite: it is the {LONG_STEPS + 1}th in a row to move particles far "
            "beyond any earlier move"
        )
    single = loop.state.points.dtype.itemsize < 8
    coarse = "float32 is too coarse for the target, or its" if single else "its"
    enable = "enable x64, or " if single else ""
    back = f", {outside} of them moved back to where the target is finite" if moved_back else ""
    return Notice(
        "not-finite",
        f"step {int(loop.step) + 1} {what}; the particles are those before it{back}. Likely causes: (a) the step size "
        f"is too large: {smaller}; (b) the log density or its gradient is NaN or infinite where the particles went: "
        "declare constraints with `support=`, or start closer; (c) the curvature is singular or indefinite: "
        f"{damped}; (d) {coarse} numbers overflow: {enable}bring the parameters to scales nearer 1.",
    )


def _whole(array: Array) -> Array:
    """An array that every process has, where some of it lies with others."""
    return array if array.is_fully_addressable else jax.device_put(on_host(array))
