"""The state of a run: its loop, history and fault counters, advanced chunk by chunk."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..core.multihost import on_host
from ..core.types import Batch, Key, Points, PyTree
from ..results.outcome import Faults, History
from ..samplers.sampler import AbstractSampler
from ..targets.constrained import constrained
from ..targets.target import BoundTarget
from .history import Lines, Record, Recorder, most_lines
from .loop import LoopState, Options, advance

_CAPACITY = 1024  # the most records that a compiled call returns


class FaultCounters(NamedTuple):
    """Counts of faults so far, as arrays, so that checkpoints can hold them."""

    in_a_row: np.ndarray
    """(n,) the number of steps in a row at which each particle failed."""
    failed_at: np.ndarray
    """(n,) the last step at which each particle failed."""
    stuck: np.ndarray
    """(n,) whether each particle has ever failed more than five steps in a row."""
    moved_back: np.ndarray
    """() how often a particle was moved back."""
    damped: np.ndarray
    """() the number of steps taken with a larger damping."""
    largest_damping: np.ndarray
    """() the largest factor on the damping."""

    @classmethod
    def none(cls, number: int) -> "FaultCounters":
        """The counters of `number` particles before the first step."""
        never, zero = np.full(number, -2, np.int32), np.zeros((), np.int64)
        return cls(np.zeros(number, np.int32), never, np.zeros(number, bool), zero, zero, np.ones(()))


@dataclass
class Run:
    """The inputs of a run and its current state."""

    key: Key
    sampler: AbstractSampler
    target: BoundTarget
    tempering: Callable[[Array], Array] | None
    data: Batch
    batch_size: int | None
    record_every: int
    record_particles: bool
    tolerance: float | None
    max_move: float | None
    loop: LoopState
    """The state from which it goes on. `compile_ahead` needs its shapes alone."""
    first: int
    """The number of steps taken before the run began."""
    capacity: int = field(init=False)
    recorder: Recorder = field(init=False)
    faults: FaultCounters = field(init=False)
    last_good: LoopState = field(init=False)
    """The state of the loop after the last successful step."""

    def __post_init__(self) -> None:
        points: Points = self.loop.state.points
        self.capacity = int(np.clip(2**24 // points.size, 1, _CAPACITY)) if self.record_particles else _CAPACITY
        self.recorder = Recorder(self.first, self.record_every, most_lines(points.size if self.record_particles else 4))
        self.faults = FaultCounters.none(points.shape[0])
        self.last_good = self.loop
        self._options = Options(
            jax.device_put(np.int32(self.record_every)),
            jax.device_put(np.float64(-1.0 if self.tolerance is None else self.tolerance)),
            jax.device_put(np.float64(np.inf if self.max_move is None else self.max_move)),
        )

    @property
    def done(self) -> int:
        """The number of steps taken in this run."""
        return int(self.loop.step) - self.first

    def options(self) -> dict[str, Any]:
        """The options of `fit` as JSON, the shapes of the data and the key."""
        names = ("batch_size", "record_every", "record_particles", "tolerance", "max_move")
        shapes = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree.leaves(self.data)]
        return {
            **{name: getattr(self, name) for name in names},
            "tempering": None
            if self.tempering is None
            else getattr(self.tempering, "__name__", type(self.tempering).__name__),
            "steps before": self.first,
            "data shapes": shapes,
            "key": [str(jr.key_impl(self.key)), np.asarray(jr.key_data(self.key)).tolist()],
        }

    def history(self) -> History:
        """The history so far."""
        lines = self.recorder.lines()
        step, info = np.asarray(lines.step), jax.tree.map(np.asarray, lines.info)
        particles = None if lines.points is None else _constrain_records(self.target, np.asarray(lines.points))
        return History(step, info.velocity_norm, info.step_size, info.stein_ratio, particles)

    def count_faults(self) -> Faults:
        """The faults so far, as a result has them."""
        counters = self.faults
        return Faults(
            int(counters.moved_back), tuple(map(int, np.flatnonzero(counters.stuck))), int(counters.damped),
            float(counters.largest_damping), int(self.loop.shortened),
        )  # fmt: skip

    @property
    def target_now(self) -> BoundTarget:
        """The target at the current values of the shared parameters."""
        return self.sampler.target_at(self.loop.state, self.target)

    @property
    def going(self) -> bool:
        """Whether the run can take another step: it has neither diverged nor converged."""
        return bool(self.loop.healthy) and not bool(self.loop.converged)

    @property
    def longest_chunk(self) -> int:
        """The most steps that one compiled call can record."""
        return self.record_every * self.capacity

    def compile_ahead(self) -> None:
        """Compile the program of the steps in a thread, where it has not been."""
        advance.compile_ahead(*self._arguments(self.sampler, self.loop, 1))

    def take(self, steps: int) -> None:
        """Take up to `steps` steps; fewer where one fails, which leaves the loop unhealthy."""
        if self.done % self.record_every:  # between two records: end at the next one
            steps = min(steps, until(self.done, self.record_every))
        elif steps > self.record_every:  # end at a record
            steps -= steps % self.record_every
        self._accept(*self._advance(self.sampler, self.loop, steps))

    def take_one(self, sampler: AbstractSampler) -> bool:
        """Take the next step with another sampler; `False`, without taking it, where it fails."""
        loop, lines = self._advance(sampler, self.loop._replace(healthy=jax.device_put(np.bool_(True))), 1)
        if loop.healthy:
            self._accept(loop, lines)
        return bool(loop.healthy)

    def lower(self) -> Any:
        """The program of the steps before it is compiled."""
        return advance.lower(*self._arguments(self.sampler, self.loop, 1))

    def _advance(self, sampler: AbstractSampler, loop: LoopState, steps: int) -> tuple[LoopState, Lines]:
        """Take up to `steps` steps. Where one fails, the state is that before it, with `healthy` False."""
        after, lines = advance(*self._arguments(sampler, loop, steps))
        if after.healthy:
            return after, lines
        while not after.healthy:  # the steps before the one that failed; on some devices the same step may fail sooner
            steps = int(after.step) - int(loop.step)
            if not steps:
                after = loop
                break
            after, lines = advance(*self._arguments(sampler, loop, steps))
        return after._replace(healthy=jax.device_put(np.bool_(False))), lines

    def _arguments(self, sampler: AbstractSampler, loop: LoopState, steps: int) -> Any:
        number = jax.device_put(np.int32(steps))
        return (
            self.key, sampler, self.target, self.tempering, self.data, loop, number, self._options, self.batch_size,
            self.capacity, self.record_particles,
        )  # fmt: skip

    def _accept(self, loop: LoopState, lines: Lines) -> None:
        before, now = int(self.loop.step), int(loop.step)
        number = -(-(now - before) // self.record_every)
        step = np.minimum(before + self.record_every * np.arange(1, number + 1), now).astype(np.int32)
        info, points = jax.tree.map(lambda leaf: on_host(leaf)[:number], lines)
        self.recorder.add(Record(step, info, points))
        if number:
            self.last_good = loop
        self.loop = loop


def until(done: int, every: int) -> int:
    """The number of steps to the next multiple of `every`."""
    return every - done % every


def _constrain_records(target: BoundTarget, points: np.ndarray) -> PyTree:
    """The particles of a history, by programs for powers of two: every checkpoint has another number of records."""
    number, n, d = points.shape
    padded = np.zeros((1 << max(number - 1, 0).bit_length(), n, d), points.dtype)
    padded[:number] = points
    particles = constrained(target, jax.device_put(padded), 2)
    return jax.tree.map(lambda leaf: leaf[:number], particles)
