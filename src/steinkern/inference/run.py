"""A run under way: the loop, its history and its trouble, moved on chunk by chunk."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.identity import ProgramHasher
from ..core.multihost import on_host
from ..core.types import Batch, Key, Points
from ..samplers.sampler import AbstractSampler
from ..targets.target import AbstractTarget
from .history import Record, Recorder, most_lines
from .loop import LoopState, Options, advance, first_loop
from .recovery import Trouble, looker, mended, moved_back

_CAPACITY = 1024  # records a compiled call can return


@dataclass
class Run:
    """What a run is made from, and where it stands."""

    key: Key
    sampler: AbstractSampler
    target: AbstractTarget
    tempering: Callable[[Array], Array] | None
    data: Batch
    batch_size: int | None
    record_every: int
    record_particles: bool
    tolerance: float | None
    longest_move: float | None
    loop: LoopState
    first: int = field(init=False)
    """The number of steps behind the run when it began."""
    capacity: int = field(init=False)
    recorder: Recorder = field(init=False)
    trouble: Trouble = field(init=False)
    sound: LoopState = field(init=False)
    """The loop after the last step that was taken."""

    def __post_init__(self) -> None:
        self.first = int(self.loop.step)
        points: Points = self.loop.state.points
        self.capacity = int(np.clip(2**24 // points.size, 1, _CAPACITY)) if self.record_particles else _CAPACITY
        self.recorder = Recorder(self.first, self.record_every, most_lines(points.size if self.record_particles else 4))
        self.trouble = Trouble.none(points.shape[0])
        self.sound = self.loop
        self._options = Options(
            jnp.asarray(self.record_every),
            jnp.asarray(-1.0 if self.tolerance is None else self.tolerance),
            jnp.asarray(jnp.inf if self.longest_move is None else self.longest_move),
        )

    @property
    def done(self) -> int:
        """The number of steps taken in this run."""
        return int(self.loop.step) - self.first

    @property
    def settings(self) -> dict[str, Any]:
        """The numbers that change what is computed or recorded."""
        names = ("batch_size", "record_every", "record_particles", "tolerance", "longest_move")
        return {**{name: getattr(self, name) for name in names}, "steps before": self.first}

    @property
    def target_now(self) -> AbstractTarget:
        """The target that the particles stand for now, with shared parameters as they are."""
        return self.sampler.target_at(self.loop.state, self.target)

    @property
    def going(self) -> bool:
        """Whether there is a next step."""
        return bool(self.loop.healthy) and not bool(self.loop.converged)

    @property
    def longest_chunk(self) -> int:
        """As many steps as one compiled call has room to record."""
        return self.record_every * self.capacity

    def take(self, steps: int) -> int:
        """Take up to so many steps; fewer where one fails, and none where the first does and is mended first."""
        if self.done % self.record_every:  # a line is under way: end with it
            steps = min(steps, until(self.done, self.record_every))
        elif steps > self.record_every:  # whole lines, so that the next chunk need not end one
            steps -= steps % self.record_every
        before = self.done
        self._accept(*self._advanced(self.sampler, self.loop, steps))
        if not self.loop.healthy:
            self._mend()
        return self.done - before

    def finish(self, look: Callable[[Points], np.ndarray]) -> int:
        """Move particles back that the last step left where the target is not finite; how many are there all the same.

        Args:
            look: from points to whether the target is finite at each.
        """
        outside = int(np.sum(~look(self.loop.state.points)))
        if outside and self.loop.healthy:
            self.trouble, loop = moved_back(self.trouble, self.loop, look)
            if loop is not None:
                self.loop, outside = loop, 0
                self.recorder.amend(on_host(loop.state.points))
        return outside

    def digests(self, programs: ProgramHasher) -> dict[str, str]:
        """What the run computes: a digest for each of its parts, traced on the shapes at hand and not compiled.

        Args:
            programs: where the parts are traced; afterwards it says what could not be told.
        """
        points = self.loop.state.points
        batch = jax.eval_shape(lambda data: self.target.batch(data, self.batch_size), self.data)

        def values(target: AbstractTarget, points: Points, batch: Batch) -> tuple[Array, Array | None]:
            scores = target.scores(points, batch) if self.sampler.differentiates else None
            return target.log_densities(points, batch), scores

        def temper(tempering: Callable[[Array], Array], step: Array) -> Array:
            return tempering(step)

        def take(
            sampler: AbstractSampler, target: AbstractTarget, tempering: Any, key: Key, data: Batch, loop: LoopState
        ) -> Any:
            return advance(
                key, sampler, target, tempering, data, loop, jnp.asarray(1), self._options, self.batch_size,
                self.capacity, self.record_particles,
            )  # fmt: skip

        own = (self.sampler, self.target)
        digests = {"target": programs.digest(values, (self.target,), (points, batch))}
        if self.tempering is not None:
            digests["tempering"] = programs.digest(temper, (self.tempering,), (self.loop.step,))
        digests["first state"] = programs.digest(first_loop, own, (points, batch, self.loop.step))
        digests["step"] = programs.digest(take, (*own, self.tempering), (self.key, self.data, self.loop))
        return digests

    def _advanced(self, sampler: AbstractSampler, loop: LoopState, steps: int) -> tuple[LoopState, Record]:
        return advance(
            self.key, sampler, self.target, self.tempering, self.data, loop, jnp.asarray(steps), self._options,
            self.batch_size, self.capacity, self.record_particles,
        )  # fmt: skip

    def _accept(self, loop: LoopState, record: Record) -> None:
        taken = int(loop.step) - int(self.loop.step)
        self.recorder.add(jax.tree.map(lambda leaf: on_host(leaf)[: -(-taken // self.record_every)], record))
        if taken:
            self.sound = loop
        self.loop = loop

    def _mend(self) -> None:
        """Bring the run to where its next step can be tried again; where that is nowhere, leave it unhealthy."""
        attempts: list[tuple[LoopState, Record]] = []

        def retry(sampler: AbstractSampler, loop: LoopState) -> LoopState:
            attempts.append(self._advanced(sampler, loop, 1))
            return attempts[-1][0]

        look = looker(
            self.key, self.target_now, self.tempering, self.data, self.batch_size, self.sampler.differentiates,
            self.loop.step,
        )  # fmt: skip
        self.trouble, loop = mended(self.trouble, self.loop, self.sampler, look, retry)
        if loop is None:
            self.loop = self.sound._replace(healthy=jnp.asarray(False))
        elif attempts:
            self._accept(*attempts[-1])
        else:
            self.loop = loop


def until(done: int, every: int) -> int:
    """The number of steps to the next multiple of `every`."""
    return every - done % every
