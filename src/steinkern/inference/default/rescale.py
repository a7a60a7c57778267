"""With minibatches: particles moved to the means and standard deviations of chains held aside, where they differ."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree
from ...results.comparison import Comparison
from ...results.result import Result
from ...targets.target import AbstractTarget
from ..automatic.precision import bind, double_precision
from ..end_check import SETTLED_SCATTER
from ..stein_test import judge
from .held_aside import APART, HeldAside
from .minibatch import Sampled
from .refine import MOST_WORSE, OFF, worst_difference


def worth_rescaling(comparison: Comparison) -> bool:
    """Whether the particles differ from chains that no longer depend on them."""
    return comparison.r_hat <= APART and worst_difference(comparison) > OFF


def rescale(result: Result, held: HeldAside, sampled: Sampled) -> Result:
    """Shift and stretch every coordinate to the mean and standard deviation of the chains.

    Where SVGD has too few particles for the dimensions, Stein's identity can hold at particles that are too wide in a
    coordinate whose scale others depend on, such as the spread of groups. The moved particles are kept where they pass
    the check against the target, on the rows of the chains, and their Stein ratio is not farther from 1.

    Args:
        result: of a run with minibatches.
        held: chains from its particles.
        sampled: the target and the rows of the chains.
    """
    before = np.asarray(result.points, np.float64)
    draws = held.draws.points.reshape(-1, before.shape[1])
    sd = before.std(axis=0)
    points = draws.mean(axis=0) + (before - before.mean(axis=0)) * draws.std(axis=0) / np.where(sd > 0, sd, 1)
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result.particles)
    with double_precision(sampled.target, first, sampled.rows) as (wide, inner):
        bound, particle, rows = bind(inner, first, sampled.rows, wide)
        dtype = jax.tree.leaves(particle)[0].dtype
        finite, scores = jax.tree.map(np.asarray, _look(bound, jax.device_put(points.astype(dtype)), rows))
    if not finite.all():
        return result
    note = f"On {len(jax.tree.leaves(sampled.rows)[0])} rows, at particles with the moments of chains held aside"
    verdict = judge(points, scores, result.verdict.names, note=note, scatter=SETTLED_SCATTER)
    farther = abs(verdict.stein_ratio - 1) - abs(result.verdict.stein_ratio - 1)
    if not verdict.passed or farther > MOST_WORSE:
        return result
    moved = jax.device_put(points.astype(result.points.dtype))
    particles = _constrain(result.target, moved)
    return replace(result, points=moved, particles=particles, verdict=verdict, loop=None)


@compiled
def _look(target: AbstractTarget, points: Points, rows: Batch) -> tuple[Any, Points]:
    """Whether density and score are finite at every point, and the scores."""
    values, scores = jax.vmap(jax.value_and_grad(target.log_density), (0, None))(points, rows)
    return jnp.isfinite(values) & jnp.isfinite(scores).all(axis=1), scores


@compiled
def _constrain(target: AbstractTarget, points: Points) -> PyTree:
    return jax.vmap(target.bound_space.constrain)(points)
