"""Checks before a run: of the first particles, and of the gradient there."""

from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.multihost import on_host, placed_like
from ..core.notices import Notice, Phrase
from ..core.types import Points
from ..samplers.sampler import AbstractSampler


def coincident(points: Points, sampler: AbstractSampler) -> Iterator[Notice]:
    """Warns where all particles start at one point, and the sampler cannot separate them."""
    x = on_host(points)
    if len(x) > 1 and (sampler.interacting or sampler.deterministic) and (x == x[:1]).all():
        yield Notice(
            "coincident",
            f"all {len(x)} first particles are the same point, and {type(sampler).__name__} moves them together, "
            "so that they never separate. Start from different ones, such as `steinkern.initial.gaussian(key, centre, "
            "num_particles)`.",
        )


def before(
    points: Points, log_densities: Array, scores: Array, values_at: Callable[[Points], Array]
) -> Iterator[Notice]:
    """Check the gradient of the log density at the first particles.

    Args:
        points: the first particles.
        log_densities: the log densities there.
        scores: the gradients there.
        values_at: a function from points to log densities.
    """
    if points.dtype.itemsize < 4:  # half precision is too coarse for finite differences
        return
    x, value, slope = (on_host(array).astype(np.float64) for array in (points, log_densities, scores))
    if not slope.any():
        if np.unique(value).size > 1:
            yield Notice(
                "zero-gradient",
                "the gradient of the log density is exactly zero at all first particles, though its value differs "
                "between them: it is constant in pieces (rounding, integers, argmax), or its gradient is cut off "
                "(stop_gradient). Make it differentiable, or ",
                Phrase.GRADIENT_FREE,
                ".",
            )
        return
    with np.errstate(all="ignore"):  # comparisons with numbers that overflow are false
        wrong = _is_not_the_slope(points, values_at, x, value, slope)
    if np.mean(wrong) > 0.5:
        yield Notice(
            "wrong-gradient",
            f"the gradient of the log density is not its slope at {int(wrong.sum())} of the {len(x)} first particles: "
            "it is not differentiable there, its gradient is cut off (stop_gradient), or its own derivative rule is "
            "wrong. Compare with finite differences, or ",
            Phrase.GRADIENT_FREE,
            ".",
        )


def _is_not_the_slope(
    points: Points, values_at: Callable[[Points], Array], x: np.ndarray, value: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    """(n,) bool: whether finite differences along one direction contradict the gradient at each particle."""
    precision = float(jnp.finfo(points.dtype).eps)
    spread = float(np.sqrt(np.mean(np.var(x, axis=0)))) or float(np.max(np.abs(x))) or 1.0
    direction = np.random.default_rng(0).normal(size=x.shape[1:])
    length = precision ** (1 / 3) * spread
    offset = length * direction[None, :] / np.sqrt(np.mean(direction**2))
    beside = (placed_like((x + sign * offset).astype(points.dtype), points) for sign in (1, -1))
    above, below = (on_host(values_at(moved)).astype(np.float64) for moved in beside)
    # Compares the difference of the values along `offset` with the one that the gradient predicts. Allows for the
    # function's curvature, by which the two one-sided differences differ, and for rounding errors.
    difference, expected = (above - below) / 2, slope @ offset[0]
    bend, rounding = np.abs(above - 2 * value + below), 100 * precision * (np.abs(value) + np.abs(above))
    allowed = 0.25 * np.maximum(np.abs(difference), np.abs(expected)) + bend + rounding
    return np.abs(difference - expected) > allowed
