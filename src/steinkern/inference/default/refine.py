"""Refinement by the mixture kernel, where one metric for all particles does not give the target's shape."""

import warnings
from dataclasses import fields, replace

import jax
import numpy as np
import optax

from ...core.types import Batch, KeyLike, SteinWarning
from ...kernels.bandwidth import Median
from ...kernels.scalar import IMQ
from ...results.comparison import Comparison
from ...results.result import History, Result, Status
from ...samplers.stein import matrix_svgd
from ...targets.curvature import Hessian
from .held_aside import HeldAside, compare

STEPS = 200
REFRESH = 5
"""Steps between two computations of the anchors' Hessians."""
MOST_HESSIANS = 200_000
"""The most entries of all anchors' Hessians together; with more, particles are left as they are."""
MOST_PAIRS = 5_000_000
"""The most pairs of particles times anchors. Above 170 particles fewer anchors than particles are taken."""
OFF = 0.1
"""Differences of means, in standard deviations, and of ratios of standard deviations from 1, that are refined."""
CAN_TELL = 1.2
"""The largest R-hat of chains that can choose between particles before and after the refinement."""
MOST_WORSE = 0.05
"""By how much the Stein ratio of refined particles may be farther from 1."""


def worst_difference(comparison: Comparison) -> float:
    """The largest difference of a mean or of the logarithm of a standard deviation from the chains'."""
    ratios = np.maximum(comparison.sd_ratios, 1e-300)
    return float(max(np.max(np.abs(comparison.mean_differences)), np.max(np.abs(np.log(ratios)))))


def worth_refining(result: Result, comparison: Comparison) -> bool:
    """Whether the particles differ from chains that can tell, and the mixture's Hessians are affordable."""
    n, d = result.points.shape
    affordable = number_of_anchors(n) * d * d <= MOST_HESSIANS
    return comparison.r_hat <= CAN_TELL and worst_difference(comparison) > OFF and affordable


def number_of_anchors(n: int) -> int:
    """Every particle is an anchor where that is affordable, else fewer are: a step takes n² of them each."""
    return min(n, max(MOST_PAIRS // n**2, 1))


def refine(key: KeyLike, result: Result, data: Batch, held: HeldAside) -> tuple[Result, np.ndarray]:
    """Continue with the mixture kernel, a metric around every particle, and keep what is nearer to the chains.

    The refined particles are kept where they differ less from the chains held aside and their Stein ratio is not
    farther from 1. The history goes on. Of the run's other settings none is used: neither checkpoints nor a callback.

    Args:
        key: of the `fit`.
        result: of the run in one metric.
        data: of the `fit`.
        held: the chains.

    Returns:
        One of the two results, and the values, gradients, Hessians and batches of the refinement.
    """
    from ..fit import fit  # which calls this module

    n = len(result.points)
    optimiser = optax.sgd(optax.cosine_decay_schedule(1.0, STEPS, 0.05))
    anchors, kernel = number_of_anchors(n), IMQ(Median(largest=100))
    sampler = matrix_svgd("mixture", Hessian(), kernel, optimiser, refresh_every=REFRESH, anchors=anchors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteinWarning)
        refined = fit(
            key, result.target, sampler, replace(result, loop=None), data, num_steps=STEPS,
            record_every=result.settings["record_every"], record_particles=result.history.particles is not None,
            progress=False, throw=False,
        )  # fmt: skip
    refined = replace(refined, history=_joined(result.history, refined.history))
    spent = np.array([0, n * STEPS, anchors * STEPS // REFRESH, STEPS + 2 * STEPS // REFRESH])
    return (refined if _is_better(refined, result, held) else result), spent


def _joined(first: History, second: History) -> History:
    """The records of two runs, of which one continues the other."""

    def join(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(part) for part in parts])

    pairs = {own.name: (getattr(first, own.name), getattr(second, own.name)) for own in fields(History)}
    return History(**{name: jax.tree.map(join, *pair) for name, pair in pairs.items()})


def _is_better(refined: Result, before: Result, held: HeldAside) -> bool:
    points = np.asarray(refined.points, np.float64)
    if refined.status is Status.DIVERGED or not np.isfinite(points).all():
        return False
    differences = [worst_difference(compare(np.asarray(each.points, np.float64), held)) for each in (refined, before)]
    ratios = [abs(each.verdict.stein_ratio - 1) for each in (refined, before)]
    return differences[0] < differences[1] and ratios[0] < ratios[1] + MOST_WORSE
