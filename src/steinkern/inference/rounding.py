"""What float32 cannot hold: coordinates that vary little beside their size, and log densities of a large size."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.messages import Notice
from ..core.particles import Layout
from ..core.types import PyTree

MAX_LOG_DENSITY_ROUNDING = 0.1
"""In nats. A larger rounding error of the log density changes the acceptance of transitions."""
MIN_SPACINGS = 100
"""Floating-point spacings in a standard deviation; with fewer, rounding shows in the particles."""


def too_coarse(values: Any, *, constants: bool = True) -> Any:
    """A mask of the coordinates of (n, …) float32 values whose standard deviation is below 100 of their spacings.

    Args:
        values: an array of NumPy or JAX.
        constants: whether coordinates in which all values are equal count.
    """
    xp: Any = np if isinstance(values, np.ndarray) else jnp
    low, high = xp.min(values, axis=0), xp.max(values, axis=0)
    sizes = xp.maximum(xp.maximum(xp.abs(low), xp.abs(high)), float(np.finfo(np.float32).tiny))
    spacings = float(np.finfo(np.float32).eps) * xp.exp2(xp.floor(xp.log2(sizes)))
    narrow = (xp.std(values, axis=0) < MIN_SPACINGS * spacings) & ((low != 0) | (high != 0))
    return narrow if constants else narrow & (low < high)


def log_density_rounding(log_densities: np.ndarray) -> float:
    """The rounding error of log densities of typical size, eps × median |log p|, in their own precision."""
    sizes = np.abs(log_densities[np.isfinite(log_densities)])
    return float(np.finfo(log_densities.dtype).eps * np.median(sizes)) if sizes.size else 0.0


def check_rounding(
    coarse: np.ndarray, coarse_particles: PyTree, name_of: Callable[[int], str], log_densities: np.ndarray | None
) -> tuple[Notice, ...]:
    """A notice where float32 is too coarse for the target, by its particles.

    Args:
        coarse: (d,) whether each unconstrained coordinate is `too_coarse`.
        coarse_particles: the same for constrained ones, a pytree of masks.
        name_of: the name of an unconstrained coordinate.
        log_densities: at the particles; `None` where the run does not use them.
    """
    narrow = [name_of(int(place)) for place in np.flatnonzero(coarse)[:1]]
    number = int(np.sum(coarse))
    masks = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(coarse_particles)]
    if not number and any(mask.any() for mask in masks):
        places = np.flatnonzero(np.concatenate(masks))
        layout = Layout.of(jax.tree.map(lambda mask: np.asarray(mask, np.float32), coarse_particles))
        narrow, number = [layout.coordinate_name(int(places[0]))], len(places)
    reasons = []
    if narrow:
        others = f" and {number - 1} more" if number > 1 else ""
        reasons.append(
            f"the standard deviation of {narrow[0]!r}{others} is below {MIN_SPACINGS} spacings of the numbers"
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
