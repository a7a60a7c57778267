"""Checkpoints of a `fit`: saved results with the state of the loop, and the identity of their run."""

import os
from collections.abc import Callable
from pathlib import Path

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
from ..core.multihost import is_writer, largest, on_host, placed_like, same_everywhere
from ..core.types import PyTree
from ..results.outcome import Diagnostics, Status
from ..results.result import Result
from ..results.saving import pack_result
from ..targets.constrained import constrained
from .distributed import several_processes, within
from .history import Recorder
from .loop import Evaluation, LoopState, Run, advance, evaluate, first_loop
from .recovery import count_faults


class Checkpointer:
    """Saves a run to checkpoints, and restores it from the newest one before its first step.

    A run is identified by its versions, devices and options, and by digests of its programs, of the arrays that enter
    them, and of the log densities and scores at the first particles. A checkpoint with another identity is refused.

    Args:
        directory: of the checkpoints of this run only; created where it does not exist.
        every: the number of steps between two checkpoints.
        run: the run. Of several processes, process 0 writes.
        loop: its state before the first step.
        evaluation: the target at the first particles.
        particles: with which the run begins; or the earlier result.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: int,
        run: Run,
        loop: LoopState,
        evaluation: Evaluation,
        particles: PyTree,
    ):
        self.run, self.directory, self.every, self._several = run, Path(directory), every, several_processes(run.mesh)
        self._lock: filelock.BaseFileLock | None = None
        points, mesh, earlier = loop.state.points, run.mesh, isinstance(particles, Result)
        with within(mesh):  # as the programs are compiled
            inputs = run.sampler, run.target, points, run.first_batch()
            programs = {
                "program of the target": evaluate.lower(*inputs),
                "program of the first step": first_loop.lower(*inputs, run.first_step),
                "program of the steps": advance.lower(run, loop, np.int32(1)),
            }
        first = (particles.particles, particles.points, particles.shared, particles.loop) if earlier else particles
        arrays = {"data": run.data, "first particles": first, "target": run.target, "sampler": run.sampler}
        values = {"log densities": evaluation.log_densities, "scores": evaluation.scores}
        self.identity = {
            **{f"version of {name}": version for name, version in versions().items()},
            "device": jax.devices()[0].device_kind,
            "number of devices": 1 if mesh is None else mesh.size,
            "number of particles": len(points),
            "dtype": points.dtype.name,
            **run.settings(),
            **{name: array_digest(value) for name, value in arrays.items()},
            **{name: value_digest(value) for name, value in values.items()},
            **{name: program_digest(lowered) for name, lowered in programs.items()},
        }

    def __enter__(self) -> "Checkpointer":
        """Lock the directory."""
        self._in_writer(self._take_lock)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release(force=True)

    def save(self, loop: LoopState, recorder: Recorder) -> None:
        """Write a checkpoint; `CheckpointError` in all processes where that fails."""
        points, run, target = loop.state.points, self.run, self.run.target_at(loop)
        done = quantity(run.steps_done(loop), "step")
        message = Notice("checkpoint", f"a checkpoint after {done}; the run continued from it, or stopped.")
        result = Result(
            constrained(target, points), points, Status.STOPPED, message, int(loop.step), recorder.history(target),
            Diagnostics(faults=count_faults(loop)), target, run.sampler, None, run.settings(), shared=target.shared,
        )  # fmt: skip
        meta, arrays = pack_result(result)  # gathers shares of other processes, so all must call it
        meta |= {"loop": pack_leaves((loop, recorder.records()), arrays, "loop")}
        meta |= {"every": recorder.every, "identity": self.identity}
        try:
            self._in_writer(lambda: save_checkpoint(self.directory, result.num_steps, meta, arrays))
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint at step {result.num_steps} could not be written to {self.directory}: "
                f"{error.strerror or error}. The last good one, if there was one, is intact; make room and run the "
                "same call again to continue from it. `result` of this error is the result so far."
            ) from error

    def restore(self, loop: LoopState, recorder: Recorder) -> LoopState:
        """The state of the newest intact checkpoint, or `loop` where there is none."""
        saved = newest_checkpoint(self.directory, rename=is_writer(self._several))
        step = -1 if saved is None else saved[0]["result"]["fields"]["num_steps"]
        if not same_everywhere(self._several, f"{step:20d}"):
            raise ValueError(
                "`checkpoint` must be a directory that all processes see: they found different checkpoints in "
                f"{self.directory}. Put it on a file system that the machines share."
            )
        if saved is None:
            return loop
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
        record = loop.step, loop.info, loop.state.points if self.run.options.record_particles else None
        restored, records = unpack(meta["loop"], arrays, (loop, record))
        recorder.every = meta["every"]
        recorder.add(jax.tree.map(np.asarray, records))
        if self.run.steps_done(restored) > self.run.options.num_steps:
            raise ValueError(
                f"`num_steps` must be at least {self.run.steps_done(restored)}, where the checkpoint in `checkpoint` "
                f"{self.directory} stands, got {self.run.options.num_steps}. Raise it, or choose another directory."
            )
        return jax.tree.map(_placed_like, restored, loop)

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
        (failed,) = largest(self._several, failure is not None)
        if failed:
            raise failure or OSError("process 0 failed; its own error says why")


def _placed_like(leaf: Array, reference: Array) -> Array:
    return leaf if is_key(leaf) else placed_like(on_host(leaf), reference)
