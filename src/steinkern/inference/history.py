"""The history of a run: records of its steps, thinned to bounded memory."""

from typing import Any, NamedTuple

import jax
import numpy as np

from ..core.types import PyTree
from ..results.outcome import History
from ..targets.constrained import constrained
from ..targets.target import BoundTarget

MAX_RECORDS = 2**16
MAX_NUMBERS = 2**26
_MAX_PARTS = 256  # arrays in the list of records before they are concatenated


class Record(NamedTuple):
    """One record of the history, or several stacked along a leading axis: step, `Info` and particles."""

    step: Any
    info: Any
    points: Any
    """`None` unless the particles are recorded."""


class Recorder:
    """The history of a run so far, in bounded memory.

    Whenever there are more than `max_records`, every second one is dropped and the interval between records doubles.
    Those that are left are the records of a run that recorded half as often. The record of the last step is always
    kept.

    Args:
        first_step: the number of steps taken before the run began.
        every: the number of steps between two records.
        max_records: the most records to keep.
    """

    def __init__(self, first_step: int, every: int, max_records: int):
        self.first_step, self.every, self.max_records = first_step, every, max_records
        self.last: Record | None = None
        self._parts: list[Record] = []
        self._number = 0

    def add(self, records: Record) -> None:
        """Add records in the order of their steps. One off the stride is kept only while it is the last."""
        if records.step.size:
            self.last = jax.tree.map(lambda leaf: leaf[-1:].copy(), records)
        self._add_on_stride(records)
        while self._number > self.max_records:
            self.every *= 2
            records, self._parts, self._number = _concatenate(self._parts), [], 0
            self._add_on_stride(records)
        if len(self._parts) > _MAX_PARTS:
            self._parts = [_concatenate(self._parts)]

    def records(self) -> Record:
        """All records, the last one included."""
        records = _concatenate(self._parts)
        if self.last is None:
            return records
        before = records.step < self.last.step
        return _concatenate([jax.tree.map(lambda leaf: leaf[before], records), self.last])

    def history(self, target: BoundTarget) -> History:
        """The history so far, with the particles in the target's own coordinates."""
        step, info, points = self.records()
        particles = None if points is None else _constrain(target, points)
        return History(step, info.velocity_norm, info.step_size, info.stein_ratio, particles)

    def amend(self, points: np.ndarray) -> None:
        """Replace the particles of the last record, where it has any, after they were moved back."""
        if self.last is not None and self.last.points is not None:
            self.last = self.last._replace(points=points[None])

    def _add_on_stride(self, records: Record) -> None:
        on_stride = (records.step - self.first_step) % self.every == 0
        # Indexing by a mask copies; a slice would keep the whole buffer of a chunk alive.
        self._parts.append(jax.tree.map(lambda leaf: leaf[on_stride], records))
        self._number += int(on_stride.sum())


def max_records(numbers_per_record: int) -> int:
    """The most records to keep, given the number of numbers in one."""
    return int(np.clip(MAX_NUMBERS // max(numbers_per_record, 1), 16, MAX_RECORDS))


def _concatenate(parts: list[Record]) -> Record:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _constrain(target: BoundTarget, points: np.ndarray) -> PyTree:
    """The particles of a history, by programs for powers of two: every checkpoint has another number of records."""
    number, n, d = points.shape
    padded = np.zeros((1 << max(number - 1, 0).bit_length(), n, d), points.dtype)
    padded[:number] = points
    particles = constrained(target, jax.device_put(padded), 2)
    return jax.tree.map(lambda leaf: leaf[:number], particles)
