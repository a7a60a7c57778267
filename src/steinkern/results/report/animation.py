"""The particles along the run as 16-bit integers, finer than a screen, which a script of the page draws."""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.messages import join_truncated
from ..summary import columns

MAX_COORDINATES = 24
"""The most coordinates that a page holds."""
MAX_PARTICLES = 400
MISSING = 65535
"""The code of a value that is not finite."""


def evenly_spaced_to_last(number: int, limit: int) -> np.ndarray:
    """At most `limit` evenly spaced indices below `number`, the last one included."""
    return np.unique(np.linspace(0, number - 1, min(number, limit)).round().astype(int)) if number else np.zeros(0, int)


def animate(
    steps: np.ndarray, sites: Mapping[str, Any], coordinates: Sequence[str] | None, *, moves: bool = True
) -> tuple[dict[str, Any], str]:
    """The data of the script, and a note on the coordinates and particles that are left out.

    Args:
        steps: the recorded iterations, the last of which is the end of the run.
        sites: the particles there by name, with axes (iteration, particle, …).
        coordinates: names of coordinates, or of sites for all their coordinates; by default the first that vary.
        moves: draw a particle's path over the last iterations; `False` for chains, which do not become the particles.
    """
    if coordinates:
        chosen = _named(sites, coordinates)
        total = len(chosen)
    else:
        named = list(columns(sites, 2, 2 * MAX_COORDINATES))  # nearly half of a Cholesky factor is 0
        varying = [(name, values) for name, values in named if np.any(values != values.flat[0])]
        chosen = (varying or named)[:MAX_COORDINATES]
        total = sum(math.prod(values.shape[2:]) for values in sites.values())
    left_out = []
    if total > MAX_COORDINATES:
        left_out.append(
            f"The first {MAX_COORDINATES} of {total} coordinates are here; choose others by "
            "`report(..., coordinates=[names])` or `--coordinates`."
        )
    number = chosen[0][1].shape[1]
    rows = evenly_spaced_to_last(number, MAX_PARTICLES)
    if number > MAX_PARTICLES:
        left_out.append(f"{MAX_PARTICLES} of {number:,} particles are drawn; the table has all.")
    chosen = chosen[:MAX_COORDINATES]
    values = np.stack(
        [np.asarray(column, np.float64)[:, rows] for _, column in chosen], axis=1
    )  # frame, coordinate, particle
    values = np.where(np.isfinite(values), np.clip(values, -1e300, 1e300), np.nan)  # so that windows are finite
    windows = [_window(values[:, i]) for i in range(len(chosen))]
    ends = [_window(values[-1, i]) for i in range(len(chosen))]
    low, high = (np.array(end)[None, :, None] for end in zip(*windows, strict=True))
    with np.errstate(invalid="ignore"):
        codes = np.rint((values - low) / (high - low) * (MISSING - 1))
    codes = np.where(np.isfinite(codes), codes, MISSING).astype("<u2")
    content = {
        "names": [name for name, _ in chosen],
        "steps": [int(step) for step in steps],
        "shown": _first_shown([name for name, _ in chosen], bool(coordinates)),
        "particles": len(rows),
        "trail": 6 if moves else 0,  # iterations whose moves are drawn behind a particle
        "windows": windows,
        "views": [_view(values[:, i], end) for i, end in enumerate(ends)],
        "ends": ends,
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }
    return content, " ".join(left_out)


def _first_shown(names: list[str], asked: bool) -> list[int]:
    """The coordinates drawn at first: five requested ones, or three: the first of each site, then others."""
    if asked:
        return list(range(len(names)))[:5]
    sites = [name.partition("[")[0] for name in names]
    firsts_then_others = sorted(range(len(names)), key=lambda i: sites[i] in sites[:i])
    return sorted(firsts_then_others[:3])


def _named(sites: Mapping[str, Any], wanted: Sequence[str]) -> list[tuple[str, np.ndarray]]:
    """The coordinates with these names, and all those of sites with these names."""
    by_name, chosen = dict(columns(sites, 2)), dict[str, np.ndarray]()
    for want in [wanted] if isinstance(wanted, str) else wanted:
        matching = {name: values for name, values in by_name.items() if name == want or name.startswith(f"{want}[")}
        if not matching:
            listed = join_truncated(list(sites))
            raise ValueError(f"`coordinates` must name sites or coordinates, such as those of {listed}; got {want!r}.")
        chosen |= matching
    return list(chosen.items())


def _view(values: np.ndarray, end: tuple[float, float]) -> tuple[float, float]:
    """An interval with all of the last particles and 99% of all values, so that outliers do not shrink the picture."""
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.005, 0.995]) if finite.size else end
    return min(float(low), end[0]), max(float(high), end[1])


def _window(values: np.ndarray) -> tuple[float, float]:
    """An interval with a margin around all finite values."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    pad = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad
