"""What is recorded along a run: lines of the history, thinned where they grow too many."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from .sampler import Info

MOST_LINES = 2**16
MOST_NUMBERS = 2**26


class Record(NamedTuple):
    """One line of the history; or many, stacked along a leading axis."""

    step: Array
    info: Info
    points: Array | None


class Recorder:
    """The history of a run so far, in bounded memory.

    Where there would be more than `most` lines, every second one is let go and from then on only every second one is
    kept: the lines left are those of a run that recorded half as often. The line of the last step is always there.

    Args:
        first: the number of steps behind the run when it began.
        every: the steps from line to line.
        most: how many lines to keep.
    """

    def __init__(self, first: int, every: int, most: int):
        self.first = first
        self.every = every
        self.most = most
        self.kept: list[Record] = []
        self.last: Record | None = None

    def add(self, lines: Record) -> None:
        """Lines in the order of their steps; those between two multiples of the stride are seen only as the last."""
        if lines.step.size:
            self.last = jax.tree.map(lambda leaf: leaf[-1:], lines)
        self.kept.append(self._on_stride(lines))
        while sum(len(part.step) for part in self.kept) > self.most:
            self.every *= 2
            self.kept = [self._on_stride(_joined(self.kept))]

    def lines(self) -> Record:
        """All lines, the last one included."""
        kept = _joined(self.kept)
        if self.last is None or (kept.step.size and kept.step[-1] == self.last.step[0]):
            return kept
        return _joined([kept, self.last])

    def _on_stride(self, lines: Record) -> Record:
        chosen = (lines.step - self.first) % self.every == 0
        # A copy where something is left out: a slice would keep the whole chunk in memory.
        return lines if chosen.all() else jax.tree.map(lambda leaf: leaf[chosen], lines)


def most_lines(numbers_a_line: int) -> int:
    """How many lines of so many numbers are kept."""
    return int(np.clip(MOST_NUMBERS // max(numbers_a_line, 1), 16, MOST_LINES))


def _joined(parts: list[Record]) -> Record:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
