"""Checkpoints of a `fit`: saved results with the state of the loop, and the identity of their run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np
from jaxtyping import Array

from ..core.archive import (
    CheckpointError,
    is_key,
    lock_directory,
    newest_checkpoint,
    pack_leaves,
    save_checkpoint,
    unpack,
)
from ..core.identity import array_digest, differences, program_digest, value_digest, versions
from ..core.messages import Notice, quantity
from ..core.multihost import any_process, is_writer, on_host, placed_like, same_everywhere
from ..results.outcome import Diagnostics, Status
from ..results.result import Result
from ..results.saving import pack_result
from ..targets.constrained import constrained
from .distributed import several_processes, within
from .history import Record
from .loop import evaluate, first_loop
from .prepare import Start
from .run import Run


class Checkpointer:
    """Saves a run to checkpoints, and restores it from the newest one before its first step.

    A run is identified by its versions, devices and options, and by digests of its programs, of the arrays that enter
    them, and of the log densities and scores at the first particles. A checkpoint with another identity is refused.

    Args:
        directory: of the checkpoints of this run only; created where it does not exist.
        start: the run before its first step.
        mesh: the devices over which the particles are spread, if any. Of several processes, process 0 writes.
    """

    def __init__(self, directory: str | os.PathLike[str], start: Start, mesh: Any):
        self.run, self.directory, self._several = start.run, Path(directory), several_processes(mesh)
        self._lock: filelock.BaseFileLock | None = None
        run, points = self.run, start.points
        with within(mesh):  # as the programs are compiled
            inputs = run.sampler, run.target, points, start.batch
            programs = {
                "program of the target": evaluate.lower(*inputs),
                "program of the first step": first_loop.lower(*inputs, run.loop.step),
                "program of the steps": run.lower(),
            }
        arrays = {"data": run.data, "first particles": start.given, "target": run.target, "sampler": run.sampler}
        values = {"log densities": start.seen.log_densities, "scores": start.seen.scores}
        self.identity = {
            **{f"version of {name}": version for name, version in versions().items()},
            "device": jax.devices()[0].device_kind,
            "number of devices": 1 if mesh is None else mesh.size,
            "number of particles": len(points),
            "dtype": points.dtype.name,
            **run.options(),
            **{name: array_digest(value) for name, value in arrays.items()},
            **{name: value_digest(value) for name, value in values.items()},
            **{name: program_digest(lowered) for name, lowered in programs.items()},
        }

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock that `restore` has taken."""
        if self._lock is not None:
            self._lock.release(force=True)

    def save(self) -> None:
        """Write a checkpoint of the run's current state; `CheckpointError` in all processes where that fails."""
        run, step = self.run, int(self.run.loop.step)
        meta, arrays = pack_result(_result_so_far(run))  # gathers shares of other processes, so all must call it
        state = pack_leaves((run.loop, run.faults, run.recorder.lines()), arrays, "loop")
        meta |= {"loop": state, "every": run.recorder.every, "identity": self.identity}
        try:
            self._in_writer(lambda: save_checkpoint(self.directory, step, meta, arrays))
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint at step {step} could not be written to {self.directory}: {error.strerror or error}. "
                "The last good one, if there was one, is intact; make room and run the same call again to go on from "
                "it. `result` of this error is the result so far."
            ) from error

    def restore(self, num_steps: int) -> None:
        """Lock the directory, and restore the run from the newest intact checkpoint, if there is one.

        Args:
            num_steps: the number of steps of the run, which the checkpoint must not exceed.
        """
        self._in_writer(self._take_lock)
        try:
            self._restore()
            if self.run.done > num_steps:
                raise ValueError(
                    f"`num_steps` must be at least {self.run.done}, where the checkpoint in `checkpoint` "
                    f"{self.directory} stands, got {num_steps}. Raise it, or choose another directory."
                )
        except BaseException:
            self.__exit__()
            raise

    def _restore(self) -> None:
        run, saved = self.run, newest_checkpoint(self.directory, rename=is_writer(self._several))
        step = -1 if saved is None else saved[0]["result"]["fields"]["num_steps"]
        if not same_everywhere(self._several, f"{step:20d}"):
            raise ValueError(
                "`checkpoint` must be a directory that all processes see: they found different checkpoints in "
                f"{self.directory}. Put it on a file system that the machines share."
            )
        if saved is None:
            return
        meta, arrays = saved
        before, now = meta.get("identity", {}), self.identity
        if names := differences(before, now):
            listed = ", ".join(f"{name} (was {before.get(name)}, is {now.get(name)})" for name in names)
            raise CheckpointError(
                f"`checkpoint` {self.directory} is of another run. What differs: {listed}. Run with what it was made "
                "from, choose another directory, or begin a new run at its particles with `fit(..., particles="
                f"steinkern.load({str(self.directory)!r}))`.",
                names,
            )
        record = Record(run.loop.step, run.loop.info, run.loop.state.points if run.record_particles else None)
        loop, run.faults, lines = unpack(meta["loop"], arrays, (run.loop, run.faults, record))
        run.loop = run.last_good = jax.tree.map(_placed_like, loop, run.loop)
        run.recorder.every = meta["every"]
        run.recorder.add(jax.tree.map(np.asarray, lines))

    def _take_lock(self) -> None:
        self._lock = lock_directory(self.directory, "`checkpoint`")

    def _in_writer(self, action: Callable[[], None]) -> None:
        """Run an action in process 0; where it raises an `OSError` there, all processes do."""
        failure = None
        if is_writer(self._several):
            try:
                action()
            except OSError as error:
                failure = error
        (failed,) = any_process(self._several, failure is not None)
        if failed:
            raise failure or OSError("process 0 failed; its own error says why")


def _result_so_far(run: Run) -> Result:
    points, target = run.loop.state.points, run.target_now
    message = Notice(
        "checkpoint", f"a checkpoint after {quantity(run.done, 'step')}; the run went on from it, or stopped."
    )
    return Result(
        constrained(target, points), points, Status.STOPPED, message, int(run.loop.step), run.history(),
        Diagnostics(faults=run.count_faults()), target, run.sampler, None, run.options(), shared=target.shared,
    )  # fmt: skip


def _placed_like(leaf: Array, reference: Array) -> Array:
    return leaf if is_key(leaf) else placed_like(on_host(leaf), reference)
