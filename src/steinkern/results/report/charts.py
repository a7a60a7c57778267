"""Line charts as inline SVG, which take the page's colours, print well and need no script."""

import math
from typing import Any

import numpy as np

from .. import html

_WIDTH, _HEIGHT = 520, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 496.0, 12.0, 172.0
_MAX_POINTS = 400  # of a curve; a screen shows no more


class _Scale:
    """A linear or logarithmic map from values to positions on the page."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False):
        self.log = log
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)
        if not self.high > self.low:
            pad = abs(self.low) * 0.1 or 1.0
            self.low, self.high = self.low - pad, self.high + pad
        self.start, self.end = start, end

    def __call__(self, value: Any) -> float:
        exact = math.log10(value) if self.log else float(value)
        return self.start + (exact - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, max_ticks: int = 5) -> list[float]:
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            if last - first >= 1:
                stride = max(1, math.ceil((last - first + 1) / max_ticks))
                return [10.0**power for power in range(first, last + 1, stride)]
            return [tick for tick in ticks(10**self.low, 10**self.high, max_ticks) if tick > 0]
        return ticks(self.low, self.high, max_ticks)


def ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
    """About `max_ticks` round numbers between two ends."""
    rough = (high - low) / max(max_ticks - 1, 1)
    unit = (10.0 ** math.floor(math.log10(rough)) if rough > 0 and math.isfinite(rough) else 0.0) or 1.0
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= 0.7 * rough)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A number as printed on an axis or in a table; a dash where it is not finite."""
    return f"{value:.4g}" if math.isfinite(value) else "–"


def trace(name: str, step: np.ndarray, value: np.ndarray, *, log: bool, level: float | None = None) -> str:
    """A curve against the step, with gaps where it is not finite (or, on a logarithmic axis, not positive).

    Args:
        name: of the curve, for screen readers.
        step: the steps.
        value: the values at the steps.
        log: whether the axis of values is logarithmic.
        level: a reference value, drawn across the chart.
    """
    stride = max(1, math.ceil(len(step) / _MAX_POINTS))
    rows = np.unique(np.append(np.arange(0, len(step), stride), len(step) - 1))
    x, y = np.asarray(step, float)[rows], np.asarray(value, float)[rows]
    good = np.isfinite(y) & ((y > 0) if log else True) & (np.abs(y) < 1e300)
    if not good.any():
        return ""
    ends = [*y[good].tolist(), *([] if level is None else [level])]
    x_scale = _Scale(float(x[0]), float(x[-1]), _LEFT, _RIGHT)
    y_scale = _Scale(min(ends), max(ends), _BOTTOM - 6, _TOP + 6, log)
    parts = [_axes(x_scale, y_scale)]
    if level is not None:
        parts.append(
            f'<line class="level" x1="{_LEFT}" x2="{_RIGHT}" y1="{y_scale(level):.1f}" y2="{y_scale(level):.1f}"/>'
        )
    for run in np.split(np.flatnonzero(good), np.flatnonzero(np.diff(np.flatnonzero(good)) > 1) + 1):
        if len(run) > 1:
            points = " ".join(f"{x_scale(x[i]):.1f},{y_scale(y[i]):.1f}" for i in run)
            parts.append(f'<polyline class="curve" points="{points}"/>')
        else:
            parts.append(f'<circle class="dot" cx="{x_scale(x[run[0]]):.1f}" cy="{y_scale(y[run[0]]):.1f}" r="3"/>')
    parts.append(f'<line class="now" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{_BOTTOM}" visibility="hidden"/>')
    end = f"{name} from step {x[0]:g} to {x[-1]:g}; it ends at {number(y[good][-1])}"
    span = f'data-first="{x_scale.low}" data-last="{x_scale.high}" data-left="{_LEFT}" data-right="{_RIGHT}"'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.text(end)}" {span}>{"".join(parts)}</svg>'
    )


def _axes(x_scale: _Scale, y_scale: _Scale) -> str:
    lines = [
        f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y_scale(tick):.1f}" y2="{y_scale(tick):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y_scale(tick) + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick in y_scale.ticks()
    ]
    lines += [
        f'<text x="{x_scale(tick):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{number(tick)}</text>'
        for tick in x_scale.ticks(6)
    ]
    return "".join(lines) + f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
