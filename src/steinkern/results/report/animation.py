"""The particles along the run as 16-bit integers, finer than a screen, which a script of the page draws."""

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .tables import columns, number_of_columns

MOST_COORDINATES = 24
"""The most coordinates that a page holds."""
MOST_PARTICLES = 400
MOST_SHOWN = 5
"""The most coordinates drawn at once."""
FIRST_SHOWN = 3
"""The number of coordinates drawn before the reader chooses."""
MISSING = 65535
"""The code of a value that is not finite."""
_LARGEST = 1e300
_TRAIL = 6  # iterations whose moves are drawn behind a particle


def animate(
    steps: np.ndarray, sites: Mapping[str, np.ndarray], coordinates: Sequence[str] | None, *, moves: bool = True
) -> tuple[dict[str, Any], str]:
    """The data of the script, and a note on the coordinates and particles that are left out.

    Args:
        steps: the recorded iterations, the last of which is the end of the run.
        sites: the particles there by name, with axes (iteration, particle, …).
        coordinates: names of coordinates, or of sites for all their coordinates; the first ones by default.
        moves: draw a particle's path over the last iterations; `False` for chains, which do not become the particles.
    """
    named = columns(sites, batch_axes=2)
    if coordinates is None:
        chosen = list(itertools.islice(named, MOST_COORDINATES))
        total = sum(number_of_columns(values, 2) for values in sites.values())
    else:
        chosen = _named(list(named), coordinates, sites)
        total = len(chosen)
    left_out = []
    if total > MOST_COORDINATES:
        left_out.append(
            f"The first {MOST_COORDINATES} of {total} coordinates are here; choose others by "
            "`report(..., coordinates=[names])` or `--coordinates`."
        )
    number = chosen[0][1].shape[1]
    rows = np.unique(np.linspace(0, number - 1, min(number, MOST_PARTICLES)).round().astype(int))
    if number > MOST_PARTICLES:
        left_out.append(f"{MOST_PARTICLES} of {number:,} particles are drawn; the table has all.")
    chosen = chosen[:MOST_COORDINATES]
    values = np.stack(
        [np.asarray(column, np.float64)[:, rows] for _, column in chosen], axis=1
    )  # frame, coordinate, particle
    values = np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), np.nan)
    windows = [_window(values[:, i]) for i in range(len(chosen))]
    ends = [_window(values[-1, i]) for i in range(len(chosen))]
    low, high = (np.array(end)[None, :, None] for end in zip(*windows, strict=True))
    with np.errstate(invalid="ignore"):
        codes = np.rint((values - low) / (high - low) * (MISSING - 1))
    codes = np.where(np.isfinite(codes), codes, MISSING).astype("<u2")
    content = {
        "names": [name for name, _ in chosen],
        "steps": [int(step) for step in steps],
        "shown": _first_shown([name for name, _ in chosen], coordinates is not None),
        "particles": len(rows),
        "trail": _TRAIL if moves else 0,
        "windows": windows,
        "views": [_view(values[:, i], end) for i, end in enumerate(ends)],
        "ends": ends,
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }
    return content, " ".join(left_out)


def _first_shown(names: list[str], asked: bool) -> list[int]:
    """The coordinates drawn before the reader chooses: the requested ones, or the first of each site, then others."""
    order = range(len(names))
    if asked:
        return list(order)[:MOST_SHOWN]
    firsts = list({name.partition("[")[0]: i for i, name in reversed(list(enumerate(names)))}.values())
    others = [i for i in order if i not in firsts]
    return sorted([*sorted(firsts), *others][:FIRST_SHOWN])


def _named(
    named: list[tuple[str, np.ndarray]], wanted: Sequence[str], sites: Mapping[str, Any]
) -> list[tuple[str, np.ndarray]]:
    wanted = [wanted] if isinstance(wanted, str) else list(wanted)
    within = {name: [name] for name, _ in named}
    for site, values in sites.items():
        within[site] = [name for name, _ in columns({site: values}, batch_axes=2)]
    unknown = [name for name in wanted if name not in within]
    if unknown or not wanted:
        listed = ", ".join(list(sites)[:10]) + (", …" if len(sites) > 10 else "")
        got = ", ".join(map(repr, unknown)) or "no name at all"
        raise ValueError(f"`coordinates` must name sites or coordinates, such as those of {listed}; got {got}.")
    by_name = dict(named)
    return [(name, by_name[name]) for name in dict.fromkeys(part for want in wanted for part in within[want])]


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
