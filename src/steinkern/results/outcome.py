"""The course of a run: its status, its history and its faults."""

import enum
import warnings
from dataclasses import dataclass

import numpy as np

from ..core.notices import Fragment, Notice, Phrase, quantity, some_of
from ..core.reprs import ShortRepr
from ..core.types import PyTree


class Status(enum.Enum):
    """The way in which a fit ended."""

    CONVERGED = "converged"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Stopped by Ctrl-C, or because a checkpoint could not be written."""
    DIVERGED = "diverged"


@dataclass(frozen=True, repr=False)
class History(ShortRepr):
    """Diagnostics recorded every `record_every` steps: arrays with one entry for each record.

    Whenever there are more than 65,536 records, every second one is dropped. `step` holds the steps of the records that
    are left; the last step is always among them.
    """

    step: np.ndarray
    """The number of steps taken when the record was made."""
    velocity_norm: np.ndarray
    """Root mean square of the velocity."""
    step_size: np.ndarray
    """Root mean square of a move over that of the velocity; the step size of a Langevin sampler."""
    stein_ratio: np.ndarray
    """See `steinkern.stein_ratio`: 1 in expectation at exact draws."""
    particles: PyTree | None
    """The particles after that step, with axes (record, particle, …); `None` unless `record_particles` was set."""

    def traces(self) -> dict[str, np.ndarray]:
        """The recorded diagnostics by their names on a page."""
        return {"velocity norm": self.velocity_norm, "Stein ratio": self.stein_ratio, "step size": self.step_size}


@dataclass(frozen=True, repr=False)
class ChainHistory(ShortRepr):
    """Diagnostics of the chains of `sample`: arrays with one entry for each of up to 60 transitions, the last included.

    The last record of `particles` holds the particles of the result; those before hold the chains.
    """

    step: np.ndarray
    """The number of transitions, those of the warm-up included, when the record was made."""
    mean_score: np.ndarray
    """Root mean square, over whitened coordinates, of the mean score of the chains: 0 up to noise after warm-up."""
    step_size: np.ndarray
    """The step size of the leapfrog scheme, in whitened coordinates."""
    stein_ratio: np.ndarray
    """The Stein ratio of the chains, see `steinkern.stein_ratio`: 1 up to noise after warm-up."""
    particles: PyTree | None
    """The chains, with axes (record, particle, …); `None` where they would take too much memory."""

    @property
    def velocity_norm(self) -> np.ndarray:
        """Deprecated name of `mean_score`."""
        warnings.warn("`velocity_norm` of a result of `sample` is now `mean_score`.", DeprecationWarning, stacklevel=2)
        return self.mean_score

    def traces(self) -> dict[str, np.ndarray]:
        """The recorded diagnostics by their names on a page."""
        return {"mean score": self.mean_score, "Stein ratio": self.stein_ratio, "step size": self.step_size}


@dataclass(frozen=True)
class Faults:
    """Counts of the faults in a run from which it recovered."""

    moved_back: int = 0
    """How often a faulty particle was moved back along its last step, so that the others could go on."""
    stuck: tuple[int, ...] = ()
    """The particles that had to be moved back more than five steps in a row."""
    damped: int = 0
    """The number of steps taken with a larger damping, because a metric could not be factorised."""
    largest_damping: float = 1.0
    """The largest factor on the damping of those steps."""
    shortened: int = 0
    """The number of moves that exceeded `longest_move` and were clipped."""

    @property
    def frozen(self) -> int:
        """Deprecated name of `moved_back`."""
        warnings.warn("`Faults.frozen` is now `Faults.moved_back`.", DeprecationWarning, stacklevel=2)
        return self.moved_back

    def told_after(self, message: Notice) -> Notice:
        """The message followed by a sentence on every kind of fault that occurred."""
        told: list[Fragment] = []
        if self.moved_back:
            times = quantity(self.moved_back, "time")
            told.append(f" Particles were moved back {times} from where the target is not finite.")
        if self.stuck:
            told.append(f" More than five steps in a row: {some_of(self.stuck)}.")
        if self.damped:
            told.append(f" {quantity(self.damped, 'step')} needed up to {self.largest_damping:.0e} times the damping.")
        if self.shortened:
            moves = quantity(self.shortened, "move")
            told += [f" Clipped {moves}, far longer than any before: ", Phrase.LOWER_RATE, "."]
        return Notice(message.code, *message.fragments, *told)
