"""With minibatches: particles moved to the means and standard deviations of chains held aside, where they differ."""

from dataclasses import replace

import jax
import numpy as np

from ...core.types import Batch
from ...results.comparison import Comparison
from ...results.result import Result
from ...results.verdict import Verdict
from ...targets.constrained import constrained
from ..automatic.precision import bind, double_precision
from ..end_check import SETTLED_SCATTER
from ..stein_test import judge
from .held_aside import APART, HeldAside
from .minibatch import on_all_rows
from .refine import MOST_WORSE, OFF, worst_difference

FAR_SHIFT = 0.15
"""Mean scores times standard deviations, 0 at draws, beyond which particles of minibatches are not trusted."""
FAR_SPREAD = (0.75, 1.3)
"""Spreads, 1 at draws, outside of which particles of minibatches are not trusted."""


def worth_rescaling(result: Result, comparison: Comparison) -> bool:
    """Whether particles without any warning differ from chains that no longer depend on them."""
    told = result.warnings or not result.verdict.passed
    return not told and comparison.r_hat <= APART and worst_difference(comparison) > OFF


def rescale(result: Result, held: HeldAside, data: Batch) -> Result:
    """Shift and stretch every coordinate to the mean and standard deviation of the chains.

    Where SVGD has too few particles for the dimensions, Stein's identity can hold at particles that are too wide in a
    coordinate whose scale others depend on, such as the spread of groups. The moved particles are kept where Stein's
    identity holds for them on all rows, within limits as narrow as the answers should be.

    Args:
        result: of a run with minibatches.
        held: chains from its particles, on a sample of the rows.
        data: all rows.
    """
    before = np.asarray(result.points, np.float64)
    draws = held.draws.points.reshape(-1, before.shape[1])
    sd = before.std(axis=0)
    points = draws.mean(axis=0) + (before - before.mean(axis=0)) * draws.std(axis=0) / np.where(sd > 0, sd, 1)
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result.particles)
    with double_precision(result.target, first, data) as (wide, inner):
        bound, particle, rows = bind(inner, first, data, wide)
        values, scores = on_all_rows(bound, points.astype(jax.tree.leaves(particle)[0].dtype), rows)
    if not (np.isfinite(values).all() and np.isfinite(scores).all()):
        return result
    verdict = judge(points, scores, result.verdict.names, scatter=SETTLED_SCATTER)
    if not _confirms(verdict, result.verdict):
        return result
    moved = jax.device_put(points.astype(result.points.dtype))
    return replace(result, points=moved, particles=constrained(result.target, moved), verdict=verdict, loop=None)


def _confirms(verdict: Verdict, before: Verdict) -> bool:
    shift, spread = np.abs(verdict.shift.value), verdict.spread.value
    near = len(shift) and shift.max() <= FAR_SHIFT and spread.min() >= FAR_SPREAD[0] and spread.max() <= FAR_SPREAD[1]
    farther = abs(verdict.stein_ratio - 1) - abs(before.stein_ratio - 1)
    return bool(verdict.passed and near and farther <= MOST_WORSE)
