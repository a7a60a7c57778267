"""How a run went: its status, its history and its faults."""

import enum
import warnings
from dataclasses import dataclass

import numpy as np

from ..core.notices import Fragment, Notice, Phrase
from ..core.types import PyTree


class Status(enum.Enum):
    """How a fit ended."""

    CONVERGED = "converged"
    FINISHED = "finished"
    STOPPED = "stopped"
    """By Ctrl-C."""
    DIVERGED = "diverged"


@dataclass(frozen=True)
class History:
    """What was recorded along the way, every `record_every` steps: arrays with one entry a record.

    Beyond 65,536 records every second one is let go, again and again; `step` says which are left, and the last step is
    always among them.
    """

    step: np.ndarray
    """The number of steps taken when the record was made."""
    velocity_norm: np.ndarray
    step_size: np.ndarray
    stein_ratio: np.ndarray
    particles: PyTree | None
    """The particles after that step, with axes (record, particle, …); `None` unless `record_particles` was set."""


@dataclass(frozen=True)
class Faults:
    """What went wrong along the way and was dealt with."""

    moved_back: int = 0
    """How often a particle at fault was moved back, so that the others could go on."""
    stuck: tuple[int, ...] = ()
    """The particles that had to be moved back more than five steps in a row."""
    damped: int = 0
    """How many steps were taken with a larger damping, because a metric could not be factorised."""
    largest_damping: float = 1.0
    """The largest factor on the damping of those steps."""
    shortened: int = 0
    """How many moves were longer than `longest_move` allows and made shorter."""

    @property
    def frozen(self) -> int:
        """The old name of `moved_back`."""
        warnings.warn("`Faults.frozen` is now `Faults.moved_back`.", DeprecationWarning, stacklevel=2)
        return self.moved_back

    def told_after(self, message: Notice) -> Notice:
        """The message with a sentence on every kind of fault."""
        told: list[Fragment] = []
        if self.moved_back:
            told.append(f" Particles were moved back {self.moved_back} times from where the target is not finite.")
        if self.stuck:
            told.append(f" More than five steps in a row: {', '.join(map(str, self.stuck))}.")
        if self.damped:
            told.append(f" {self.damped} steps needed up to {self.largest_damping:.0e} times the damping.")
        if self.shortened:
            told += [f" {self.shortened} absurdly long moves were made shorter: ", Phrase.LOWER_RATE, "."]
        return Notice(message.code, *message.fragments, *told)
