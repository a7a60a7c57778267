"""The host loop of a run: chunks of compiled steps, recovery, progress bar, callback, checkpoints and Ctrl-C."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ..core.archive import CheckpointError
from ..core.interrupt import interruptible
from ..core.messages import Notice, quantity
from ..core.multihost import is_writer, largest
from ..core.progress import compiling, progress_bar
from ..results.outcome import Status
from ..samplers.sampler import Info
from .checkpoint import Checkpointer
from .distributed import explain_lost_process, several_processes, within
from .history import Recorder
from .loop import LoopState, Run, capacity, take_steps
from .recovery import recover

CALLBACK, CTRL_C, CHECKPOINT = "the callback", "Ctrl-C", "a checkpoint that could not be written"
"""What may end a run early, in its messages."""
_NOTICE = "Ctrl-C: the run ends after the present steps. A second one ends it at once, without a result."
_CHUNK_SECONDS = 0.2  # the aim for the time of a compiled call, so that the progress bar moves

Callback = Callable[[int, Any, Info], Any]


def advance_run(
    run: Run,
    loop: LoopState,
    recorder: Recorder,
    callback: Callback | None,
    checkpointer: Checkpointer | None,
    progress: bool | None,
) -> tuple[LoopState, str, CheckpointError | None]:
    """Take the steps of a run.

    Args:
        run: the run.
        loop: its state.
        recorder: takes its records.
        callback: as in `fit`.
        checkpointer: writes the checkpoints; `None` for a run without.
        progress: whether to show a bar; `None` shows it on a terminal and in a notebook.

    Returns:
        The last state, what ended the run before all steps were taken (empty where nothing did), and the error of a
        checkpoint that could not be written.
    """
    several, num_steps, every = several_processes(run.mesh), int(run.options.num_steps), int(run.options.record_every)
    # Ctrl-C waits for the end of a chunk. The first is one step; the time of each gives the length of the next.
    chunk, max_chunk = 1, every * (1 if callback else capacity(run, loop))
    ended_by, failure = "", None
    first = saved = done = run.steps_done(loop)
    bar = progress_bar(num_steps, done, progress if is_writer(several) else False)
    with bar, interruptible(_NOTICE) as interrupt, within(run.mesh), explain_lost_process(run.mesh):
        while done < num_steps and loop.healthy and not loop.converged and not ended_by:
            start = time.perf_counter()
            to_checkpoint = checkpointer.every - done % checkpointer.every if checkpointer else num_steps
            steps = min(chunk, num_steps - done, to_checkpoint)
            if done % every:  # between two records: end at the next one
                steps = min(steps, every - done % every)
            elif steps > every:  # end at a record
                steps -= steps % every
            with compiling(bar) if done == first else nullcontext():
                loop = take_steps(run, loop, steps, recorder)
            if not loop.healthy:
                loop = recover(run, loop, recorder) or loop
            before, done = done, run.steps_done(loop)
            bar.update(done - before)
            velocity, moved_back = float(loop.info.velocity_norm), int(loop.faults.moved_back)
            repaired = f", particles moved back {quantity(moved_back, 'time')}" if moved_back else ""
            bar.set_postfix_str(f"velocity {velocity:.3g}{repaired}", refresh=False)
            seconds = time.perf_counter() - start
            ended, at_record = not loop.healthy or bool(loop.converged), done % every == 0 or done == num_steps
            stop_requested = False
            if callback is not None and done > before and at_record and not ended:
                stop_requested = bool(callback(int(loop.step), loop.state, loop.info))
            seconds, stop_requested, interrupted = largest(several, seconds, stop_requested, interrupt.requested)
            chunk = int(max(1, min(max_chunk, (done - before) * _CHUNK_SECONDS / seconds)))
            ended_by = CTRL_C if interrupted else CALLBACK if stop_requested else ""
            due = ended or ended_by or done == num_steps or (checkpointer and done % checkpointer.every == 0)
            if checkpointer and due and loop.healthy and done > saved:
                try:
                    checkpointer.save(loop, recorder)
                except CheckpointError as error:  # raised in all processes
                    failure, ended_by = error, CHECKPOINT
                saved = done
    return loop, ended_by, failure


def ending(loop: LoopState, ended_by: str, resumable: bool) -> tuple[Status, Notice]:
    """The status and message of a run that has not diverged.

    Args:
        loop: its last state.
        ended_by: what ended it before all steps were taken; empty where nothing did.
        resumable: whether the last state has a checkpoint.
    """
    steps, fraction = quantity(int(loop.step), "step"), f"{loop.velocity_fraction:.2g} of its largest"
    if loop.converged:
        return Status.CONVERGED, Notice("converged", f"the velocity fell to {fraction} value after {steps}.")
    if ended_by:
        continuation = "give this result to `fit` to continue it"
        if resumable:
            continuation = "the same call continues from its checkpoint"
        status = Status.FINISHED if ended_by == CALLBACK else Status.STOPPED
        return status, Notice("ended-early", f"{ended_by} ended the run after {steps}; {continuation}.")
    text = f"all steps were taken; the velocity is {float(loop.info.velocity_norm):.3g}, {fraction}."
    return Status.FINISHED, Notice("all-steps", text)
