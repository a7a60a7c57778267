"""The history of a run: records of its steps, thinned to bounded memory."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ..samplers.sampler import Info

MOST_LINES = 2**16
MOST_NUMBERS = 2**26
_MOST_PARTS = 256  # arrays in the list of records before they are concatenated


class Record(NamedTuple):
    """One record of the history, or several stacked along a leading axis."""

    step: Array | np.ndarray
    info: Info
    points: Array | None


class Lines(NamedTuple):
    """What the compiled loop records, stacked along a leading axis; the host knows the steps."""

    info: Info
    points: Array | None


class Recorder:
    """The history of a run so far, in bounded memory.

    Whenever there are more than `most` lines, every second one is dropped and the interval between lines doubles. The
    lines that are left are those of a run that recorded half as often. The line of the last step is always kept.

    Args:
        first: the number of steps taken before the run began.
        every: the number of steps between two lines.
        most: the most lines to keep.
    """

    def __init__(self, first: int, every: int, most: int):
        self.first = first
        self.every = every
        self.most = most
        self.last: Record | None = None
        self._kept: list[Record] = []
        self._number = 0

    def add(self, lines: Record) -> None:
        """Add lines in the order of their steps. A line off the stride is kept only while it is the last."""
        if lines.step.size:
            self.last = jax.tree.map(lambda leaf: leaf[-1:].copy(), lines)
        self._keep(lines)
        while self._number > self.most:
            self.every *= 2
            self._keep(None)
        if len(self._kept) > _MOST_PARTS:
            self._kept = [_concatenate(self._kept)]

    def lines(self) -> Record:
        """All lines, the last one included."""
        kept = _concatenate(self._kept)
        if self.last is None or (kept.step.size and kept.step[-1] == self.last.step[0]):
            return kept
        return _concatenate([kept, self.last])

    def amend(self, points: Any) -> None:
        """Replace the particles of the last line, if recorded, after they were moved back."""
        if self.last is None or self.last.points is None:
            return
        kept: Record = _concatenate(self._kept)
        self.last = self.last._replace(points=points[None])
        if kept.step.size and kept.step[-1] == self.last.step[0]:
            self._kept = [_concatenate([jax.tree.map(lambda leaf: leaf[:-1], kept), self.last])]

    def _keep(self, lines: Record | None) -> None:
        """Add the lines that are on the stride; `None` filters the lines already kept by a new stride."""
        if lines is None:
            lines, self._kept, self._number = _concatenate(self._kept), [], 0
        chosen = (lines.step - self.first) % self.every == 0
        # Indexing by a mask copies; a slice would keep the whole buffer of a chunk alive.
        self._kept.append(jax.tree.map(lambda leaf: leaf[chosen], lines))
        self._number += int(chosen.sum())


def most_lines(numbers_a_line: int) -> int:
    """The most lines to keep, given the number of numbers in a line."""
    return int(np.clip(MOST_NUMBERS // max(numbers_a_line, 1), 16, MOST_LINES))


def _concatenate(parts: list[Record]) -> Record:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
