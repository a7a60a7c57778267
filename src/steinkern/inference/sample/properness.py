"""Detects densities without finite mass, for which the search or the chains diverge to infinity."""

import jax.numpy as jnp
import numpy as np

from ...core.messages import Notice
from .evaluation import Evaluator
from .gaussian import Gaussian

_LARGEST = 1e50  # relative to 1 and the start: larger than a parameter in any unit
_LARGEST_POWER = 0.45  # of the largest number of the precision, because squares must not overflow
_GROWN = 1e3  # growth of the spread since the first round
_ROUNDS = 3  # the number of successive rounds in which the spread must double
NOT_FINITE = Notice(
    "particles-not-finite",
    "the particles are not finite: the density has no finite mass, or its parameters overflow. Give every parameter a "
    "proper prior, and bring the parameters to scales nearer 1.",
)


def no_mass_found(evaluator: Evaluator, nearest: Gaussian, start: np.ndarray, names: list[str]) -> Notice | None:
    """Why the search for the nearest Gaussian failed; `None` where it succeeded.

    Args:
        evaluator: evaluates the target.
        nearest: the last Gaussian of the search.
        start: the start of the search.
        names: the names of the coordinates.
    """
    mean, steps = nearest.mean, nearest.whitening.steps()
    largest = min(_LARGEST, float(jnp.finfo(evaluator.dtype).max) ** _LARGEST_POWER)
    with np.errstate(over="ignore", invalid="ignore"):  # a search that diverges overflows
        size = np.sqrt(np.sum(steps**2, axis=0)) + np.abs(mean - start)
    if not np.isfinite(nearest.bound) and not np.any(size > largest):
        return Notice(
            "start-at-edge",
            "no cloud of points around `start`, however small, has a finite log density and gradient: the "
            "start lies at an edge, or the log density is not differentiable there. Start inside the "
            "support, or declare it with `support=`.",
        )
    if nearest.settled and np.all(size < largest * (1 + np.abs(start))):
        return None
    worst = names[int(np.argmax(np.where(np.isfinite(size), size, np.inf)))]
    before, after = evaluator.log_densities(np.stack([start, mean + steps[-1]])).tolist()
    endless = f"the search for the posterior's mass diverges to infinity, farthest in {worst!r}. "
    return Notice("improper", endless + _advice(before, after))


def quartile_range(points: object) -> np.ndarray:
    """The interquartile range by coordinate of draws with axes (transition, chain, coordinate)."""
    drawn = np.asarray(points)
    low, high = np.quantile(drawn.reshape(-1, drawn.shape[-1]), [0.25, 0.75], axis=0)
    return np.asarray(high - low)


def is_running_away(spreads: list[np.ndarray]) -> bool:
    """Whether the chains diverge to infinity, by their interquartile ranges in all rounds so far.

    The quartiles of a proper density converge, however heavy its tails are.
    """
    if not np.all(np.isfinite(spreads[-1])):
        return True
    if len(spreads) <= _ROUNDS:
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [spreads[-turn] / spreads[-turn - 1] for turn in range(1, _ROUNDS + 1)]
    doubled = np.all([ratio > 2 for ratio in ratios], axis=0)
    return bool(np.any(doubled & (spreads[-1] > _GROWN * spreads[0])))


def no_mass_kept(spreads: list[np.ndarray], log_densities: np.ndarray, names: list[str]) -> Notice:
    """The notice for chains that diverge to infinity."""
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.nan_to_num(spreads[-1] / spreads[0], nan=np.inf)
    worst = int(np.argmax(growth))
    first, last = (float(np.median(log_densities[place])) for place in (0, -1))
    return Notice(
        "improper",
        f"the chains diverge to infinity, farthest in {names[worst]!r}, whose spread has grown "
        f"{growth[worst]:.1g}-fold and still grows. {_advice(first, last)}",
    )


def _advice(before: float, after: float) -> str:
    if not after < before + 100:  # nats; also true for NaN
        return (
            "The log density grows outwards, so that it has no finite mass: did you pass −log p in place of log p? "
            "Otherwise give the parameter a proper prior."
        )
    return "The density is flat or grows there, so that it has no finite mass: give the parameter a proper prior."
