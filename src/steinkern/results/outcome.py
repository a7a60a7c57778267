"""The outcome of a run: its status, its history, and the numbers by which it is judged."""

import enum
import math
import operator
from dataclasses import astuple, dataclass, field

import numpy as np

from ..core.messages import join_truncated, quantity
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
    """The course of a run: arrays with one entry for each record.

    `fit` makes a record every `record_every` steps. Whenever there are more than 65,536, every second one is dropped.
    `sample` records up to 60 transitions of its chains. The last step is always among the records.
    """

    step: np.ndarray
    """The number of steps, or of transitions with those of the warm-up, when the record was made."""
    velocity_norm: np.ndarray
    """Root mean square of the velocity. For `sample`, of the chains' mean score over whitened coordinates: 0 up to
    noise after warm-up."""
    step_size: np.ndarray
    """Root mean square of a move over that of the velocity; the step size of a Langevin sampler or of chains."""
    stein_ratio: np.ndarray
    """See `steinkern.stein_ratio`: 1 in expectation at exact draws."""
    particles: PyTree | None
    """The particles after that step, with axes (record, particle, …); `None` unless `record_particles` was set. For
    `sample` the chains, and last the particles; `None` where they would take too much memory."""


@dataclass(frozen=True, eq=False, repr=False)
class ChainRecord(ShortRepr):
    """What the chains of `sample` recorded after warm-up: at most 100 evenly spaced transitions of each chain.

    Successive draws of a chain depend on one another, so that thinning loses little, and files stay small.
    """

    points: np.ndarray
    """(chain, draw, d) the draws in unconstrained coordinates."""
    log_densities: np.ndarray
    """(chain, draw) the log density there, in unconstrained coordinates."""
    acceptance: np.ndarray
    """(chain, draw) the acceptance probability of the transition."""


@dataclass(frozen=True)
class Faults:
    """Counts of the faults in a run from which it recovered."""

    moved_back: int = 0
    """How often a faulty particle was moved back along its last step, so that the others could continue."""
    stuck: tuple[int, ...] = ()
    """The particles that had to be moved back more than five steps in a row."""
    damped: int = 0
    """The number of steps taken with a larger damping, because a metric could not be factorized."""
    largest_damping: float = 1.0
    """The largest factor on the damping of those steps."""
    shortened: int = 0
    """The number of moves that exceeded `max_move` and were clipped."""

    def in_words(self) -> str:
        """A sentence on every kind of fault that occurred, each after a space."""
        sentences = []
        if self.moved_back:
            times = quantity(self.moved_back, "time")
            sentences.append(f" Particles were moved back {times} from where the target is not finite.")
        if self.stuck:
            sentences.append(f" More than five steps in a row: {join_truncated(self.stuck)}.")
        if self.damped:
            steps = quantity(self.damped, "step")
            sentences.append(f" {steps} needed up to {self.largest_damping:.0e} times the damping.")
        if self.shortened:
            moves = quantity(self.shortened, "move")
            sentences.append(f" Clipped {moves}, far longer than any before: lower the learning rate.")
        return "".join(sentences)


@dataclass(frozen=True)
class Cost:
    """The cost of a result: evaluations at single points, and the number of sequential batches of them."""

    values: int = 0
    gradients: int = 0
    hessians: int = 0
    sequential: int = 0
    """The number of batched evaluations that depend on one another, which determines the time on parallel hardware; a
    Hessian counts twice."""
    epochs: float = 0.0
    """With minibatches: passes over the data."""

    def __add__(self, other: "Cost") -> "Cost":
        """The cost of both."""
        return Cost(*map(operator.add, astuple(self), astuple(other)))

    def in_gradients(self, dimension: int) -> int:
        """The total cost in gradients: a Hessian counts as `dimension` gradients, a value as one."""
        return self.values + self.gradients + dimension * self.hessians


def _empty() -> np.ndarray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False, repr=False)
class Diagnostics(ShortRepr):
    """Every number by which a result is judged; NaN or an empty array where something was not measured.

    Draws of p with score s = ∇log p have E[s] = 0 and −E[(x − E x) sᵀ] = I. In units of the particles' standard
    deviations the `shift` mean(s_j) is therefore 0, and the `spread` −mean((x_j − x̄_j) s_j) and its average, the
    `stein_ratio`, are 1. Of many particles and coordinates evenly spaced ones are measured; `sample` measures whitened
    coordinates. Numbers near these values prove nothing about modes without particles.
    """

    not_checked: tuple[str, ...] = ()
    """What was not checked, and why."""
    num_measured: int = 0
    """The number of particles of which shift, spread and Stein ratio were measured."""
    num_batches: int = 0
    """The number of minibatches that stand for all data; 0 where all data were used."""
    coordinates: np.ndarray = field(default_factory=_empty)
    """The indices of the k measured coordinates; empty for `sample`, which measures whitened ones."""
    shift: np.ndarray = field(default_factory=_empty)
    """(k,) the shift of every measured coordinate: 0 at draws. For a Gaussian, and particles as wide, in standard
    deviations."""
    shift_error: np.ndarray = field(default_factory=_empty)
    """(k,) its standard error."""
    spread: np.ndarray = field(default_factory=_empty)
    """(k,) the spread of every measured coordinate: 1 at draws. For an independent Gaussian coordinate, the ratio of
    the particles' variance to the target's."""
    spread_error: np.ndarray = field(default_factory=_empty)
    """(k,) its standard error."""
    direction_shift: np.ndarray = field(default_factory=_empty)
    """As `shift`, along 64 random directions across the coordinates, in standard deviations along each."""
    direction_shift_error: np.ndarray = field(default_factory=_empty)
    """Its standard error."""
    direction_spread: np.ndarray = field(default_factory=_empty)
    """As `spread`, along these directions."""
    direction_spread_error: np.ndarray = field(default_factory=_empty)
    """Its standard error."""
    stein_ratio: float = math.nan
    """The average of the spreads: 1 at draws, below 1 where particles are too close together."""
    stein_ratio_error: float = math.nan
    """Its standard error."""
    ksd: float = math.nan
    """The kernel Stein discrepancy of at most 256 particles, in units of their standard deviations, with `RBF()`. The
    page of a result shows another: with `IMQ()`, in unconstrained coordinates."""
    r_hat: np.ndarray = field(default_factory=_empty)
    """(d,) R-hat of the chains, near 1 after convergence: those of `sample`, or the reference chains of a `fit` without
    a sampler."""
    num_clusters: int = 1
    """The number of clusters of chains in the coordinate with the largest R-hat: several in separate modes."""
    chain_errors: np.ndarray = field(default_factory=_empty)
    """(d,) the larger of the chains' standard errors of the mean and of the standard deviation, in standard
    deviations."""
    drift: float = math.nan
    """The largest significant change of a mean or standard deviation between the halves of the draws."""
    fourth_moment: np.ndarray = field(default_factory=_empty)
    """(d,) of the chains' draws, in standard deviations: 3 for a Gaussian."""
    slope_ratio: np.ndarray = field(default_factory=_empty)
    """(d,) slopes along the other coordinates where a coordinate is high over those where it is low: 1 for a Gaussian,
    far from 1 along the width of a funnel."""
    acceptance: float = math.nan
    """The mean acceptance probability of the chains."""
    lowest_acceptance: float = math.nan
    """The mean acceptance probability of the worst chain."""
    mean_errors: np.ndarray = field(default_factory=_empty)
    """(d,) stated errors of the particles' means, in standard deviations."""
    sd_errors: np.ndarray = field(default_factory=_empty)
    """(d,) relative stated errors of the particles' standard deviations."""
    mean_differences: np.ndarray = field(default_factory=_empty)
    """(d,) the particles' means minus those of the reference chains, in standard deviations."""
    sd_ratios: np.ndarray = field(default_factory=_empty)
    """(d,) the particles' standard deviations over those of the reference chains."""
    distance: float = math.nan
    """The largest Kolmogorov distance, over 64 random directions, between the particles and held-out draws."""
    mean_score: float = math.nan
    """The largest deviation of the chains' mean score from 0, in standard errors; 0 where it is below 0.1 in whitened
    coordinates."""
    missed_component: str = ""
    """Mass that neither chains nor particles have reached, in words."""
    flat: tuple[int, ...] = ()
    """The coordinates on which the log density does not depend."""
    faults: Faults = Faults()
    cost: Cost = Cost()

    @property
    def direction_z(self) -> float:
        """The largest z-score of a shift along the random directions."""
        return float(np.max(np.abs(self.direction_shift / self.direction_shift_error), initial=0.0))

    def sentences(self) -> list[str]:
        """The numbers in a few lines, for a summary and a page."""
        lines = []
        if len(self.shift):
            lines.append(
                f"Stein check: mean score × sd up to {np.max(np.abs(self.shift)):.2g} (0 at draws), spreads from "
                f"{np.min(self.spread):.2g} to {np.max(self.spread):.2g} (1 at draws), Stein ratio "
                f"{self.stein_ratio:.2g} ± {self.stein_ratio_error:.1g} (1 at draws)."
            )
        if len(self.mean_differences):
            lines.append(
                "Beside reference chains: unconstrained means differ by up to "
                f"{np.max(np.abs(self.mean_differences)):.2g} sd, sds are {np.min(self.sd_ratios):.2f} to "
                f"{np.max(self.sd_ratios):.2f} of theirs."
            )
        if len(self.mean_errors):
            lines.append(
                f"Standard errors of unconstrained means up to {np.max(self.mean_errors):.2g} sd, of their standard "
                f"deviations up to {np.max(self.sd_errors):.2g} sd (of both, for the chains alone, up to "
                f"{np.max(self.chain_errors):.2g} sd); R-hat {np.max(self.r_hat):.3f}."
            )
        if self.cost != Cost():
            lines.append(
                f"Cost: {self.cost.gradients:,} gradients, {self.cost.hessians:,} Hessians, {self.cost.sequential:,} "
                "evaluations one after the other."
            )
        return [*lines, *(f"Not checked: {text}." for text in self.not_checked)]
