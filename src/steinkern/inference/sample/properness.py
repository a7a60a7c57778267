"""Detects densities without finite mass, for which the search or the chains diverge to infinity."""

from collections.abc import Callable

import numpy as np

from ...core.messages import Notice
from ...samplers.hamiltonian import ChainState
from .evaluation import Evaluator
from .gaussian import Gaussian

_FAR = 1e3  # times the distance of a search, or of chains, that diverged
_MIN_GROWTH, _NUM_DOUBLINGS = 1e3, 3  # of the spread: since the first round, and in successive rounds
_RESCALE_ADVICE = (
    "Give a `start` where the posterior is likely to be, bring the parameters to scales nearer 1, or enable double "
    "precision (`jax_enable_x64`)."
)
NOT_FINITE = Notice(
    "particles-not-finite",
    "the particles are not finite: the density has no finite mass, or its parameters overflow. Give every parameter a "
    "proper prior, and bring the parameters to scales nearer 1.",
)


@np.errstate(over="ignore", invalid="ignore")  # a search that diverges overflows
def search_problem(evaluator: Evaluator, nearest: Gaussian) -> Notice | None:
    """Why the search for the nearest Gaussian failed; `None` where it succeeded, or still improves slowly.

    A density is called improper only where it is not a thousand times smaller at a thousand times the distance in the
    direction of the search: a density with finite mass falls faster than 1/r.

    Args:
        evaluator: evaluates the target.
        nearest: the last Gaussian of the search.
    """
    start, size = nearest.start, nearest.size
    if not np.isfinite(nearest.bound) and not nearest.diverged:
        return Notice(
            "start-at-edge",
            "no posterior was found from these starts: no cloud of points around a start, however small, has a finite "
            "log density and gradient. The start lies at an edge, or the log density is not differentiable there. "
            "Give a `start` inside the support, or declare it with `support=`.",
        )
    if not nearest.failed:
        return None
    worst, steps = int(np.argmax(np.where(np.isfinite(size), size, np.inf))), nearest.whitening.steps()
    name = evaluator.target.space.layout.coordinate_name(worst)
    end = nearest.mean + steps[np.argmax(np.abs(steps[:, worst]))]
    beyond = np.where(size < np.max(size) / _FAR, end, start + _FAR * (end - start))  # farther where it diverges
    before, after, last = evaluator.log_densities(np.stack([start, end, beyond])).tolist()
    if after > -np.inf and last >= after - np.log(_FAR):  # false for NaN
        text = f"the search for the posterior's mass diverges to infinity, farthest in {name!r}. "
        return Notice("improper", text + _advice(before, after))
    return Notice(
        "not-found",
        f"no posterior was found from these starts: the search diverges, farthest in {name!r}, though the log density "
        f"falls there. {_RESCALE_ADVICE}",
    )


def is_diverging(spreads: list[np.ndarray]) -> bool:
    """Whether the chains diverge to infinity, by their interquartile ranges in all rounds so far.

    The quartiles of a proper density converge, however heavy its tails are.
    """
    if not np.all(np.isfinite(spreads[-1])):
        return True
    last = np.stack(spreads[-_NUM_DOUBLINGS - 1 :])
    doubled = (last[1:] > 2 * last[:-1]).all(axis=0)
    return len(last) > _NUM_DOUBLINGS and bool(np.any(doubled & (last[-1] > _MIN_GROWTH * spreads[0])))


@np.errstate(all="ignore")  # chains that diverge overflow
def divergence_notice(
    spreads: list[np.ndarray], first: ChainState, last: ChainState,
    log_densities: Callable[[np.ndarray], np.ndarray], name_of: Callable[[int], str],
) -> Notice:  # fmt: skip
    """The notice for chains that diverge to infinity.

    As in `search_problem`, the density is called improper only where it is not a thousand times smaller at a thousand
    times the distance, in the median over the chains. Coordinates that have grown little stay where they are.

    Args:
        spreads: the interquartile ranges in all rounds so far.
        first: the first draws, in NumPy arrays.
        last: the last draws.
        log_densities: the log density at (n, d) points.
        name_of: the name of a coordinate.
    """
    growth, center = np.nan_to_num(spreads[-1] / spreads[0], nan=np.inf), np.median(first.points, axis=0)
    beyond = np.where(growth > np.sqrt(growth.max()), center + _FAR * (last.points - center), last.points)
    text = (
        f"the chains diverge to infinity, farthest in {name_of(int(np.argmax(growth)))!r}, whose spread has grown "
        f"{growth.max():.1g}-fold"
    )
    rise = log_densities(beyond) - last.log_densities
    if np.median(np.where(np.isnan(rise), -np.inf, rise)) < -np.log(_FAR):
        return Notice("not-found", f"{text}, though the log density falls far out. {_RESCALE_ADVICE}")
    return Notice(
        "improper",
        f"{text} and still grows. {_advice(*(float(np.median(draws.log_densities)) for draws in (first, last)))}",
    )


def _advice(before: float, after: float) -> str:
    if not after < before + 100:  # nats; also true for NaN
        return (
            "The log density grows outwards, so that it has no finite mass: did you pass −log p in place of log p? "
            "Otherwise give the parameter a proper prior."
        )
    return "The density is flat or grows there, so that it has no finite mass: give the parameter a proper prior."
