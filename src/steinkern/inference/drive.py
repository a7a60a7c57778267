"""The host side of a run: chunks of compiled steps, the progress bar, the callback, checkpoints and Ctrl-C."""

import enum
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ..core.archive import CheckpointError
from ..core.interrupt import interruptible
from ..core.messages import quantity
from ..core.multihost import any_process, is_writer
from ..core.progress import compiling, progress_bar
from ..samplers.sampler import Info
from .checkpoint import Checkpointer
from .distributed import loss_of_a_process, several_processes, within
from .recovery import recover
from .run import Run, until

_NOTICE = "Ctrl-C: the run ends after the present steps. A second one ends it at once, without a result."
_CHUNK_SECONDS = 0.2  # how long a compiled call should take, so that the progress bar moves

Callback = Callable[[int, Any, Info], Any]


class Ending(enum.Enum):
    """Why a run took no further step."""

    LOOP = enum.auto()
    """All steps were taken, the tolerance was reached, or the run diverged."""
    CALLBACK = enum.auto()
    INTERRUPTED = enum.auto()
    """Ctrl-C was pressed."""
    NOT_SAVED = enum.auto()
    """A checkpoint could not be written."""


def drive(
    run: Run,
    num_steps: int,
    *,
    callback: Callback | None,
    checkpointer: Checkpointer | None,
    checkpoint_every: int,
    progress: bool | None,
    mesh: Any,
) -> tuple[Ending, CheckpointError | None]:
    """Advance the run to `num_steps` steps; returns why it ended, and the error of a checkpoint that failed.

    Args:
        run: the run to advance.
        num_steps: the number of steps of the run, including those before the checkpoint from which it resumes.
        callback: as in `fit`.
        checkpointer: writes the checkpoints; `None` for a run without.
        checkpoint_every: the number of steps between two checkpoints.
        progress: whether to show a bar; `None` shows it on a terminal and in a notebook.
        mesh: the devices over which the particles are spread, if any.
    """
    several = several_processes(mesh)
    # Chunks start at one step, since the time of a step is not known yet and Ctrl-C waits for the end of a chunk.
    size, longest = 1, run.record_every if callback else run.longest_chunk
    ending, failure, saved, first = Ending.LOOP, None, run.done, True
    bar = progress_bar(num_steps, run.done, progress if is_writer(several) else False)
    with checkpointer or nullcontext(), bar, interruptible(_NOTICE) as interrupt, within(mesh), loss_of_a_process(mesh):
        while run.done < num_steps and run.going and ending is Ending.LOOP:
            start, before = time.perf_counter(), run.done
            to_checkpoint = until(run.done, checkpoint_every) if checkpointer else num_steps
            with compiling(bar) if first else nullcontext():
                run.take(min(size, num_steps - run.done, to_checkpoint))
            first = False
            if not run.loop.healthy:
                recover(run)
            bar.update(run.done - before)
            bar.set_postfix_str(_postfix(run), refresh=False)
            slow = time.perf_counter() - start >= _CHUNK_SECONDS
            on_line = run.done % run.record_every == 0 or run.done == num_steps
            enough = False
            if callback is not None and run.done > before and run.going and on_line:
                enough = bool(callback(int(run.loop.step), run.loop.state, run.loop.info))
            slow, enough, interrupted = any_process(several, slow, enough, interrupt.requested)
            size = size if slow else min(4 * size, longest)
            ending = Ending.INTERRUPTED if interrupted else Ending.CALLBACK if enough else Ending.LOOP
            last = ending is not Ending.LOOP or run.done == num_steps or not run.going
            if checkpointer and run.loop.healthy and run.done > saved and (last or run.done % checkpoint_every == 0):
                try:
                    checkpointer.save()
                except CheckpointError as error:  # raised in all processes
                    failure, ending = error, Ending.NOT_SAVED
                saved = run.done
    with loss_of_a_process(mesh):
        if any(any_process(several, interrupt.requested)):  # Ctrl-C in the last chunk is reported too
            ending = Ending.INTERRUPTED
    return ending, failure


def _postfix(run: Run) -> str:
    """What the bar says beside the steps: the velocity, and repairs, which are slow."""
    velocity, moved_back = float(run.loop.info.velocity_norm), int(run.faults.moved_back)
    repaired = f", particles moved back {quantity(moved_back, 'time')}" if moved_back else ""
    return f"velocity {velocity:.3g}{repaired}"
