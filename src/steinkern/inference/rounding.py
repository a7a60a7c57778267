"""What float32 cannot hold: coordinates that vary little relative to their size, and large log densities."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..core.messages import Notice
from ..core.multihost import on_host
from ..core.particles import Layout
from ..core.types import PyTree
from ..samplers.auto import AutoSVGD
from .diagnostics import MAX_COORDINATES, evenly_spaced, measured
from .loop import Evaluation, LoopState, Run

MAX_LOG_DENSITY_ROUNDING = 0.1
"""In nats. A larger rounding error of the log density changes the acceptance of transitions."""
MIN_SPACINGS = 100
"""Floating-point spacings in a standard deviation; with fewer, rounding shows in the particles."""


def too_coarse(values: np.ndarray, *, constants: bool = True) -> np.ndarray:
    """A mask of the coordinates of (n, …) float32 values whose standard deviation is below 100 of their spacings.

    Args:
        values: the values.
        constants: whether coordinates in which all values are equal count.
    """
    low, high = np.min(values, axis=0), np.max(values, axis=0)
    spacings = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
    narrow = (np.std(values, axis=0, dtype=np.float64) < MIN_SPACINGS * spacings) & ((low != 0) | (high != 0))
    return np.asarray(narrow if constants else narrow & (low < high))


def _coarse_columns(values: Any, constants: bool = True) -> list[int]:
    """The columns of an (n, …) array, of those that are measured, in which it is `too_coarse`."""
    columns = evenly_spaced(math.prod(values.shape[1:]), MAX_COORDINATES)
    return [int(i) for i in columns[too_coarse(measured(values), constants=constants)]]


def log_density_rounding(log_densities: np.ndarray) -> float:
    """The rounding error of log densities of typical size, eps × median |log p|, in their own precision."""
    sizes = np.abs(log_densities[np.isfinite(log_densities)])
    return float(np.finfo(log_densities.dtype).eps * np.median(sizes)) if sizes.size else 0.0


def check_rounding(
    points: Any, particles: PyTree, name_of: Callable[[int], str], log_densities: np.ndarray | None
) -> tuple[Notice, ...]:
    """A notice where float32 is too coarse for the target, by its particles.

    Args:
        points: (n, d) the particles in unconstrained coordinates.
        particles: the same in constrained ones.
        name_of: the name of an unconstrained coordinate.
        log_densities: at the particles; `None` where the run does not use them.
    """
    if points.dtype != np.float32 or len(points) < 2:
        return ()
    coarse = [name_of(index) for index in _coarse_columns(points)]
    if not coarse:
        layout = Layout.of(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), particles))
        first = 0
        for leaf, size in zip(jax.tree.leaves(particles), layout.sizes, strict=True):
            coarse += [layout.coordinate_name(first + i) for i in _coarse_columns(leaf, constants=False)]
            first += size
    reasons = []
    if coarse:
        others = f" and {len(coarse) - 1} more" if len(coarse) > 1 else ""
        reasons.append(
            f"the standard deviation of {coarse[0]!r}{others} is below {MIN_SPACINGS} spacings of the numbers"
        )
    if log_densities is not None and (rounding := log_density_rounding(log_densities)) > MAX_LOG_DENSITY_ROUNDING:
        reasons.append(f"the log density, near {np.median(log_densities):.2g}, is rounded by {rounding:.2g}")
    if not reasons:
        return ()
    text = (
        f"float32 is too coarse for this target: {' and '.join(reasons)}. Enable x64 at the start of the program, "
        "`jax.config.update('jax_enable_x64', True)`, or subtract an offset."
    )
    return (Notice("float32", text),)


def check_run_rounding(run: Run, loop: LoopState, last: Evaluation) -> tuple[Notice, ...]:
    """The same at the end of a run. Log densities count where they are used, for weights or reference chains."""
    if not run.sampler.traits.samples_target:
        return ()
    uses_log_densities = isinstance(run.sampler, AutoSVGD) or not run.sampler.traits.differentiates
    log_densities = on_host(last.log_densities) if uses_log_densities else None
    return check_rounding(loop.state.points, last.particles, run.target.space.layout.coordinate_name, log_densities)
