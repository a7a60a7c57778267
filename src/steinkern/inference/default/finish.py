"""After the run of a `fit` without a sampler: the comparison with chains held aside, and what follows from it."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ...core.arrays import as_concrete_key, with_columns
from ...core.notices import Notice, Phrase
from ...core.particles import Layout
from ...core.types import Batch, KeyLike, PyTree
from ...results.result import Result, Status
from ...samplers.untuned import Untuned
from ...targets.checks import batch_length
from ...targets.target import AbstractTarget
from ..automatic.precision import bind, double_precision
from ..automatic.randomness import generators
from ..automatic.second_component import SecondComponent, has_been_visited
from ..automatic.whitening import Whitening
from ..end_check import LEAST_BATCHES, SHARE
from .held_aside import HeldAside, affordable, compare, doubts, run_held_aside
from .minibatch import RowSample, differs_from_all_rows
from .plan import Plan
from .refine import refine, worth_refining
from .rescale import FAR_SHIFT, FAR_SPREAD, rescale, worth_rescaling
from .thin import thin

UNTUNED_WORDS = dict.fromkeys((Phrase.LOWER_RATE, Phrase.LOWER_OR_ADAPT_RATE, Phrase.MORE_DAMPING), Phrase.SAMPLE)
"""Advice about settings, which such a `fit` does not have, in other words."""


class ComparedResult(NamedTuple):
    """A result with its comparison with chains held aside."""

    result: Result
    spent: np.ndarray
    """Values, gradients, Hessians and batches of them."""
    rows_visited: float = 0.0
    """With minibatches: by the chains, and by passes over all rows."""


def finish(key: KeyLike, result: Result, plan: Plan, data: Batch, batch_size: int | None) -> Result:
    """Compare the particles with chains held aside, and add the comparison, its warnings and the cost to the result.

    Args:
        key: of the `fit`.
        result: of the run.
        plan: of the run.
        data: of the `fit`.
        batch_size: of the `fit`. With minibatches and without chains Stein's identity is checked more strictly.
    """
    result = replace(result, target=plan.target.bind(jax.tree.map(lambda leaf: leaf[0], result.particles)))
    result = replace(result, warnings=(*result.warnings, *plan.warnings))
    flow, steps = len(result.points), result.num_steps - plan.steps_before
    spent = plan.spent + np.array([0, flow * steps, 0, steps])
    visited = 0.0
    if result.status not in (Status.DIVERGED, Status.STOPPED):
        result, chains, visited = compare_with_chains(
            key, result, data, plan.other, refining=True, number=plan.num_returned, row_sample=plan.row_sample
        )
        spent = spent + chains
        if batch_size is not None and result.comparison is None:
            result = replace(result, warnings=(*result.warnings, *_doubts_by_identity(result, flow)))
    elif result.status is not Status.DIVERGED:
        result = _thinned(key, result, data, plan.num_returned)
    cost: dict[str, float] = dict(zip(("values", "gradients", "hessians", "sequential"), map(int, spent), strict=True))
    if batch_size is not None:
        rows = batch_length(with_columns(data))
        of_check = min(max(SHARE * steps, LEAST_BATCHES) * batch_size, rows)
        cost["epochs"] = float(plan.epochs + (steps * batch_size + of_check + visited) / rows)
    result = replace(result, settings={**result.settings, "cost": cost})
    if result.warnings and result.status is Status.CONVERGED:
        fails = Notice("at-rest-and-fails", "the particles came to rest, and checks did not pass: see the warnings.")
        result = replace(result, status=Status.FINISHED, message=fails)
    return result


def compare_with_chains(
    key: KeyLike,
    result: Result,
    data: Batch,
    other: SecondComponent | None = None,
    *,
    refining: bool = False,
    number: int | None = None,
    row_sample: RowSample | None = None,
) -> ComparedResult:
    """A copy of a result with its comparison with chains held aside and their warnings, and what that took.

    Args:
        key: draws what the chains need.
        result: of a run.
        data: of the run.
        other: mass that the particles may not have reached; reported unless the chains meet it.
        refining: change particles that differ from the chains, where that helps: by the mixture kernel, and with
            minibatches by the moments of the chains.
        number: of particles to keep, as support points of all.
        row_sample: for a run with minibatches, the target and the rows of the chains in place of all data.
    """
    d = result.points.shape[1]
    target, rows = (result.target, data) if row_sample is None else row_sample
    rows_of_passes = 0 if row_sample is None else batch_length(with_columns(data))
    problem = None
    if not affordable(d):
        problem = _not_compared(d)
    elif row_sample is not None:
        problem = _error_of(row_sample, result, data)
    if problem is not None:
        result = replace(result, warnings=(*result.warnings, problem))
        return ComparedResult(_thinned(key, result, data, number), np.zeros(4, int), rows_of_passes)
    held = hold_chains(key, target, result, rows)
    comparison, spent, changed = compare(np.asarray(result.points, np.float64), held), held.spent, result
    if refining and row_sample is not None and worth_rescaling(result, comparison):
        changed, rows_of_passes = rescale(result, held, with_columns(data)), 2 * rows_of_passes
    elif refining and row_sample is None and worth_refining(result, comparison):
        changed, more = refine(key, result, data, held)
        spent = spent + more
    if changed is not result:  # the chains that changed the particles cannot judge them
        result, held = changed, hold_chains(key, target, changed, rows, again=True)
        comparison, spent = compare(np.asarray(result.points, np.float64), held), spent + held.spent
    if number is not None and number < len(result.points):
        result = _thinned(key, result, data, number)
        comparison = compare(np.asarray(result.points, np.float64), held)
    warnings = (*result.warnings, *doubts(comparison, held, _names(result)))
    if other is not None and not has_been_visited(other, held.draws.points):
        warnings = (*warnings, other.notice())
    visited = 0.0 if row_sample is None else rows_of_passes + float(spent[3] * batch_length(with_columns(rows)))
    return ComparedResult(replace(result, comparison=comparison, warnings=warnings), spent, visited)


def _thinned(key: KeyLike, result: Result, data: Batch, number: int | None) -> Result:
    """The result with `number` particles, support points of those that it has."""
    if number is None or number >= len(result.points):
        return result
    random = generators(as_concrete_key(key), 5)[4]
    rows = result.target.batch(jax.tree.map(np.asarray, with_columns(data)), result.settings["batch_size"])
    return thin(random, result, _whitening(result), number, rows)


def hold_chains(key: KeyLike, target: AbstractTarget, result: Result, data: Batch, *, again: bool = False) -> HeldAside:
    """Chains from a result's particles, in double precision where the log density allows it.

    The first metric is that of the sampler where it is `Untuned`, else that of the particles' covariance. With `again`
    other random numbers are drawn.
    """
    random = generators(as_concrete_key(key), 4)[3 if again else 2]
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result.particles)
    points = np.asarray(result.points, np.float64)
    with double_precision(target, first, data) as (wide, inner):
        bound, particle, batch = bind(inner, first, data, wide)
        dtype = jax.tree.leaves(particle)[0].dtype
        return run_held_aside(random, bound, points.astype(dtype), _whitening(result), batch)


def _error_of(row_sample: RowSample, result: Result, data: Batch) -> Notice | None:
    """A notice where the sample does not show the log density of all rows."""
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result.particles)
    points = np.asarray(result.points, np.float64)
    with double_precision(row_sample.target, first, row_sample.rows) as (wide, inner):
        bound, particle, rows = bind(inner, first, row_sample.rows, wide)
        _, _, every = bind(inner, first, with_columns(data), wide)
        return differs_from_all_rows(bound, points.astype(jax.tree.leaves(particle)[0].dtype), rows, every)


def _whitening(result: Result) -> Whitening:
    if isinstance(result.sampler, Untuned):
        return Whitening.of(result.sampler.metric)
    points = np.asarray(result.points, np.float64)
    n, d = points.shape
    if n >= 3 * d:
        return Whitening.of_precision(np.linalg.inv(np.cov(points.T).reshape(d, d)))
    variance = points.var(axis=0)
    return Whitening.of_precision(1 / np.where(variance > 0, variance, 1))


def _doubts_by_identity(result: Result, flow: int) -> tuple[Notice, ...]:
    """Warnings from Stein's identity at the particles of the flow, with limits as narrow as the answers should be."""
    verdict = result.verdict
    if verdict.passed is None or not len(verdict.shift.value):
        return (_unchecked(verdict.note),)
    shift, spread = verdict.shift, verdict.spread
    far = np.abs(shift.value) - 2 * _row_error(shift.error, flow) > FAR_SHIFT
    off = (spread.value < FAR_SPREAD[0]) | (spread.value > FAR_SPREAD[1])
    if not (far.any() or off.any()):
        return ()
    return (
        Notice(
            "stein-identity",
            "the particles do not satisfy Stein's identity on the data: mean score times standard deviation is up to "
            f"{np.max(np.abs(shift.value)):.2g} (0 at draws), spreads are {np.min(spread.value):.2g} to "
            f"{np.max(spread.value):.2g} (1 at draws). Means and standard deviations may be off: ",
            Phrase.LARGER_BATCH,
            ", or leave it out.",
        ),
    )


def _row_error(error: np.ndarray, n: int) -> np.ndarray:
    """The part of a standard error that is due to the sampling of rows: that of n particles is at least 1/√n."""
    return np.sqrt(np.maximum(np.asarray(error) ** 2 - 1 / n, 0))


def _unchecked(note: str) -> Notice:
    return Notice(
        "not-compared", f"the particles of a run with minibatches could not be checked: {note or 'no scores'}."
    )


def _not_compared(d: int) -> Notice:
    return Notice(
        "not-compared",
        f"the particles were not compared with chains, whose draws in {d:,} dimensions take too much memory: only "
        "Stein's identity was checked.",
    )


def _names(result: Result) -> list[str]:
    particle: PyTree = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result.particles)
    names: Any = Layout.of(particle).coordinate_names()
    d = result.points.shape[1]
    return list(names) if len(names) == d else [f"coordinate {place}" for place in range(d)]
