"""The verdict on a run's particles as draws of the target, as data and as text."""

import math
from dataclasses import dataclass, field

import numpy as np

from ..core.reprs import ShortRepr

_NAMED = 3  # the most coordinates that a sentence lists


@dataclass(frozen=True, eq=False, repr=False)
class Measure(ShortRepr):
    """A statistic for every coordinate or axis, its standard error, and whether it fails."""

    value: np.ndarray
    error: np.ndarray
    low: np.ndarray
    """(d,) bool: significantly and far below its value at exact draws."""
    high: np.ndarray
    """(d,) bool: significantly and far above its value at exact draws."""
    unclear: np.ndarray
    """(d,) bool: very far off but not significant, because a few particles hold most of the squared scores."""

    @property
    def failed(self) -> np.ndarray:
        """(d,) bool: `low` or `high`."""
        return self.low | self.high


NOTHING = Measure(np.zeros(0), np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, bool))
"""An empty measure, of zero coordinates."""


@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """The check of a run's particles against the target.

    Draws of p with score s = ∇log p have E[s] = 0 and −E[(x − E x) sᵀ] = I. So three statistics have known values at
    exact draws, in any units: `shift`, sd(x_j) · mean(s_j), is 0; `spread`, −mean((x_j − x̄_j) s_j), is 1; and
    `stein_ratio`, the average of `spread` over the coordinates, is 1. A run fails where one of them is far from its
    value, and farther than its standard error explains.

    Passing proves nothing about modes without particles: particles in one of two modes pass.
    """

    passed: bool | None
    """`None` where nothing could be checked, or where the check is `unclear`."""
    note: str = ""
    """Why nothing was checked, or which part of the data the check uses."""
    shift: Measure = NOTHING
    """The shift of every coordinate, 0 at draws. For a Gaussian, and particles as wide, in standard deviations."""
    spread: Measure = NOTHING
    """The spread of every coordinate, 1 at draws. For an independent Gaussian coordinate, the ratio of the particles'
    variance to the target's."""
    stein_ratio: float = math.nan
    """The mean of the spread over the coordinates, 1 at draws."""
    stein_ratio_error: float = math.nan
    ratio_low: bool = False
    """Whether the Stein ratio is significantly and far below 1."""
    ratio_high: bool = False
    """Whether the Stein ratio is significantly and far above 1."""
    outward: bool = False
    """Whether the log density significantly increases away from the particles' mean, on average over directions."""
    core_shift: Measure = NOTHING
    """As `shift`, with lower weights for particles far from a coordinate's median."""
    core_spread: Measure = NOTHING
    """As `spread`, with the weights of `core_shift`."""
    axis_shift: Measure = NOTHING
    """As `shift`, along `axes`, which combine several coordinates."""
    axis_spread: Measure = NOTHING
    """As `spread`, along `axes`."""
    axes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """(axes, d) directions, in standard deviations of the coordinates."""
    names: tuple[str, ...] = ()
    """The names of the coordinates."""

    @property
    def shifted(self) -> bool:
        """Whether the particles are significantly shifted from the target in some direction."""
        return any(part.failed.any() for part in (self.shift, self.core_shift, self.axis_shift))

    @property
    def narrow(self) -> bool:
        """Whether the particles are significantly too close together, on average or in some direction."""
        return self.ratio_low or any(part.low.any() for part in (self.spread, self.core_spread, self.axis_spread))

    @property
    def wide(self) -> bool:
        """Whether the particles are significantly too far apart, on average or in some direction."""
        return self.ratio_high or any(part.high.any() for part in (self.spread, self.core_spread, self.axis_spread))

    @property
    def unclear(self) -> bool:
        """Whether a statistic is very far from its value at draws, perhaps by chance: few particles decide it."""
        return self.passed is None and any(part.unclear.any() for part in (self.shift, self.spread))

    def sentence(self) -> str:
        """The verdict in one line, for a summary and a page; empty where nothing was checked and no reason is given."""
        if self.passed is None and not self.unclear:
            return f"Not checked against the target: {self.note}." if self.note else ""
        numbers = []
        if len(self.shift.value):
            shift, spread = self.shift.value, self.spread.value
            numbers.append(f"mean score × sd up to {np.max(np.abs(shift)):.2g} (0 at draws)")
            numbers.append(f"spreads from {np.min(spread):.2g} to {np.max(spread):.2g} (1 at draws)")
        numbers.append(f"Stein ratio {self.stein_ratio:.2g} ± {self.stein_ratio_error:.1g} (1 at draws)")
        judged = {True: "Passes", False: "FAILS", None: "UNCLEAR in"}[self.passed]
        rest = f" {self.note}." if self.note else ""
        return f"{judged} the Stein check: {', '.join(numbers)}.{rest}"

    def __repr__(self) -> str:
        return f"Verdict: {self.sentence() or 'nothing was checked.'}"

    def worst_shift(self) -> tuple[str, str]:
        """The largest failing shift with its standard error, as text, and its coordinates or axis."""
        return self._worst([(part, part.failed) for part in (self.shift, self.core_shift, self.axis_shift)])

    def worst_spread(self, low: bool) -> tuple[str, str]:
        """The spread that is most too small, or too large, as text, and its coordinates or axis."""
        parts = (self.spread, self.core_spread, self.axis_spread)
        return self._worst([(part, part.low if low else part.high) for part in parts])

    def worst_unclear(self) -> tuple[str, str]:
        """The unclear statistic that is farthest from its value at draws, as text, and its coordinates."""
        if self.shift.unclear.any():
            number, where = self._worst([(self.shift, self.shift.unclear)])
            return f"the mean score times the standard deviation is {number} (0 at draws)", where
        number, where = self._worst([(self.spread, self.spread.unclear)])
        return f"the spread is {number} (1 at draws)", where

    def _worst(self, parts: list[tuple[Measure, np.ndarray]]) -> tuple[str, str]:
        """The worst marked value of the first measure that has marks: coordinates, then cores, then axes."""
        for place, (measure, marked) in enumerate(parts):
            places = np.flatnonzero(marked)
            if len(places):
                size = np.abs(measure.value[places])
                too_small = bool((measure.low[places] & (measure.value[places] > 0)).all())  # spreads below 1
                worst = places[int(np.argmin(size) if too_small else np.argmax(size))]
                where = self._across(int(worst)) if place == 2 else f"in {self._listed(places)}"
                return f"{measure.value[worst]:.2g} ± {measure.error[worst]:.1g}", where
        return "", ""

    def _across(self, axis: int) -> str:
        parts = np.abs(self.axes[axis])
        order = np.argsort(-parts)
        return f"along a combination of {self._listed(order[parts[order] > 0.3 * parts.max()])}"

    def _listed(self, places: np.ndarray) -> str:
        known = [self.names[place] if self.names else f"coordinate {place}" for place in places[:_NAMED]]
        more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        return ", ".join(name or "x" for name in known) + more


def not_judged(why: str) -> Verdict:
    """The verdict on particles that were not checked; `why` completes "Not checked against the target: …"."""
    return Verdict(None, why)
