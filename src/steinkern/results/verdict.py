"""What the end of a run says of its particles as draws of the target: data, and their words."""

import math
from dataclasses import dataclass, field

import numpy as np

_NAMED = 3  # coordinates that a sentence lists


@dataclass(frozen=True, eq=False)
class Measure:
    """A number for every coordinate or axis, its standard error, and whether it fails."""

    value: np.ndarray
    error: np.ndarray
    low: np.ndarray
    """(d,) bool: certainly and far below what draws have."""
    high: np.ndarray
    """(d,) bool: certainly and far above."""
    unclear: np.ndarray
    """(d,) bool: very far off, but not certainly, because a few particles hold most of the squared scores."""

    @property
    def failed(self) -> np.ndarray:
        """(d,) bool."""
        return self.low | self.high


NOTHING = Measure(np.zeros(0), np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, bool))
"""Of no coordinates."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the end of a run says of its particles as draws of the target.

    Draws of p with score s = ∇log p have E[s] = 0 and −E[(x − E x) sᵀ] = I. So three numbers are known at them, in
    whatever units: `shift`, sd(x_j) · mean(s_j), is 0; `spread`, −mean((x_j − x̄_j) s_j), is 1; and so is its average
    over the coordinates, `stein_ratio`. A run fails where one of them is both far from that and farther than its
    standard error explains.

    A verdict that passes is no proof: particles in one of two modes pass.
    """

    passed: bool | None
    """`None` where nothing could be judged, or where the judgement is `unclear`."""
    note: str = ""
    """Why nothing was judged, or on what the judgement rests where that is not all of the data."""
    shift: Measure = NOTHING
    """Of every coordinate: 0 at draws. In standard deviations, for a Gaussian and particles as wide as it."""
    spread: Measure = NOTHING
    """Of every coordinate: 1 at draws. The variance over that of the target, for an independent Gaussian coordinate."""
    stein_ratio: float = math.nan
    """1 at draws."""
    stein_ratio_error: float = math.nan
    ratio_low: bool = False
    """The Stein ratio is certainly and far below 1."""
    ratio_high: bool = False
    """It is certainly and far above 1."""
    outward: bool = False
    """The log density certainly grows away from the particles' mean, on average over the directions."""
    core_shift: Measure = NOTHING
    """As `shift`, with particles far from a coordinate's median weighted down."""
    core_spread: Measure = NOTHING
    """As `spread`, in the same way."""
    axis_shift: Measure = NOTHING
    """As `shift`, along axes across the coordinates."""
    axis_spread: Measure = NOTHING
    """As `spread`, along the same axes."""
    axes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """(axes, d) their directions, in standard deviations of the coordinates."""
    names: tuple[str, ...] = ()
    """Of the coordinates."""

    @property
    def shifted(self) -> bool:
        """The particles are certainly beside the target, in some direction."""
        return any(part.failed.any() for part in (self.shift, self.core_shift, self.axis_shift))

    @property
    def narrow(self) -> bool:
        """They are certainly too close together, on average or in some direction."""
        return self.ratio_low or any(part.low.any() for part in (self.spread, self.core_spread, self.axis_spread))

    @property
    def wide(self) -> bool:
        """They are certainly too far apart, on average or in some direction."""
        return self.ratio_high or any(part.high.any() for part in (self.spread, self.core_spread, self.axis_spread))

    @property
    def unclear(self) -> bool:
        """Some number is very far from its value at draws, but a few particles decide it: it may be chance."""
        return self.passed is None and any(part.unclear.any() for part in (self.shift, self.spread))

    def sentence(self) -> str:
        """In one line, for a summary and a page; empty where there is nothing to say."""
        if self.passed is None and not self.unclear:
            return f"Not checked against the target: {self.note}." if self.note else ""
        numbers = []
        if len(self.shift.value):
            shift, spread = self.shift.value, self.spread.value
            numbers.append(f"mean score × sd up to {np.max(np.abs(shift)):.2g} (0 at draws)")
            numbers.append(f"spread {np.min(spread):.2g} to {np.max(spread):.2g} (1)")
        numbers.append(f"Stein ratio {self.stein_ratio:.2g} ± {self.stein_ratio_error:.1g} (1)")
        judged = {True: "Passes", False: "FAILS", None: "UNCLEAR in"}[self.passed]
        rest = f" {self.note}." if self.note else ""
        return f"{judged} the check against the target: {', '.join(numbers)}.{rest}"

    def worst_shift(self) -> tuple[str, str]:
        """The shift that fails by most, with its standard error, and where it is."""
        return self._worst([(part, part.failed) for part in (self.shift, self.core_shift, self.axis_shift)])

    def worst_spread(self, low: bool) -> tuple[str, str]:
        """The spread that is too small, or too large, by most; and where it is."""
        parts = (self.spread, self.core_spread, self.axis_spread)
        return self._worst([(part, part.low if low else part.high) for part in parts])

    def worst_unclear(self) -> tuple[str, str]:
        """The number that is farthest from its value at draws and not certain, in words; and where it is."""
        if self.shift.unclear.any():
            number, where = self._worst([(self.shift, self.shift.unclear)])
            return f"the mean score times the standard deviation is {number} (0 at draws)", where
        number, where = self._worst([(self.spread, self.spread.unclear)])
        return f"the spread is {number} (1 at draws)", where

    def _worst(self, parts: list[tuple[Measure, np.ndarray]]) -> tuple[str, str]:
        """Of coordinates, of their cores, and of axes: from the first that has any."""
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
    """The verdict on particles of which nothing can be said; `why` goes on after "not checked against the target:"."""
    return Verdict(None, why)
