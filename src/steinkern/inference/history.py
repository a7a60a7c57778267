"""The history of a run: records of its steps, thinned to bounded memory."""

from typing import Any

import jax
import numpy as np

from ..core.types import PyTree
from ..results.outcome import History
from ..targets.constrained import constrained
from ..targets.target import BoundTarget

MAX_RECORDS = 2**16
MAX_NUMBERS = 2**26  # in the recorded particles
_MAX_PARTS = 256  # arrays in the list of records before they are concatenated


Records = tuple[np.ndarray, Any, np.ndarray | None]
"""Steps, `Info` and particles (`None` unless they are recorded) of some records, stacked along a leading axis."""


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
        self._parts: list[Records] = []

    def add(self, records: Records) -> None:
        """Add records in the order of their steps; one off the interval is kept only while it is the last."""
        if self._parts and np.any((self._parts[-1][0][-1:] - self.first_step) % self.every):
            self._parts[-1] = jax.tree.map(lambda leaf: leaf[:-1], self._parts[-1])
        self._parts.append(self._thin(records))
        if len(self._parts) > _MAX_PARTS or sum(len(steps) for steps, *_ in self._parts) > self.max_records + 1:
            self.records()

    def records(self) -> Records:
        """The records at multiples of the interval, and the last one."""
        records: Records = jax.tree.map(lambda *leaves: np.concatenate(leaves), *self._parts)
        steps = records[0]
        while np.sum((steps - self.first_step) % self.every == 0) > self.max_records:
            self.every *= 2
        self._parts = [self._thin(records)]
        return self._parts[0]

    def _thin(self, records: Records) -> Records:
        """A copy of the records at multiples of the interval, and of the last one."""
        steps = records[0]
        is_kept = ((steps - self.first_step) % self.every == 0) | (steps == steps[-1:])
        thinned: Records = jax.tree.map(lambda leaf: leaf[is_kept], records)
        return thinned

    def history(self, target: BoundTarget) -> History:
        """The history so far, with the particles in the target's own coordinates."""
        steps, info, points = self.records()
        particles = None if points is None else _constrain(target, points)
        return History(steps, info.velocity_norm, info.step_size, info.stein_ratio, particles)

    def amend(self, points: np.ndarray) -> None:
        """Replace the particles of the last record, where it has any, after they were moved back."""
        _, _, recorded = self.records()
        if recorded is not None:
            recorded[-1:] = points


def max_records(numbers_per_record: int) -> int:
    """The most records to keep, given the size of a record."""
    return int(np.clip(MAX_NUMBERS // max(numbers_per_record, 1), 16, MAX_RECORDS))


def _constrain(target: BoundTarget, points: np.ndarray) -> PyTree:
    """The particles of a history, by programs for powers of two: every checkpoint has another number of records."""
    number, n, d = points.shape
    padded = np.zeros((1 << max(number - 1, 0).bit_length(), n, d), points.dtype)
    padded[:number] = points
    particles = constrained(target, jax.device_put(padded), 2)
    return jax.tree.map(lambda leaf: leaf[:number], particles)
