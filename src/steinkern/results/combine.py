"""Combining several results into one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..core.messages import Notice, quantity
from .outcome import Diagnostics, Faults, History, Status
from .result import Result


def combine(results: Sequence[Result]) -> Result:
    """Combine the particles of several results of one target, such as runs from different initial particles.

    The combined result predicts, summarises and starts another `fit` like any other; that fit begins with a new sampler
    state. It has no history and no draws, since every run has its own. Its status is the worst of the runs'.

    Args:
        results: at least one result; their parameters, constraints and shared parameters must agree.
    """
    results = list(results)
    if not results:
        raise ValueError("`results` must hold at least one result, got none.")
    for i, result in enumerate(results):
        if result.target is None:
            raise ValueError(
                f"`results` must have their targets, to see that they agree: that at index {i} was read without one. "
                "Give it, as in `steinkern.load(path, target=log_density)`."
            )
        if not eqx.tree_equal(result.target.space, results[0].target.space):
            raise ValueError(
                f"`results` must be of one target: the parameters at index {i}, their shapes, precision or constraints "
                "differ from the first result's."
            )
        if not eqx.tree_equal(result.shared, results[0].shared):
            raise ValueError(
                f"`results` must share their shared parameters: those at index {i} differ from the first result's, so "
                "their particles are of another model. Predict with each result, and average."
            )
    first = results[0]
    status = max((result.status for result in results), key=list(Status).index)
    descriptions = ", ".join(f"{quantity(result.num_steps, 'step')}, {result.status.value}" for result in results)
    empty = np.zeros(0)
    faults = [result.diagnostics.faults for result in results]
    combined = Faults(
        moved_back=sum(each.moved_back for each in faults),
        damped=sum(each.damped for each in faults),
        largest_damping=max(each.largest_damping for each in faults),
        shortened=sum(each.shortened for each in faults),
    )
    return replace(
        first,
        history=History(empty.astype(int), empty, empty, empty, None),
        diagnostics=Diagnostics(not_checked=("the particles of several runs together",), faults=combined),
        particles=jax.tree.map(_concatenate, *[result.particles for result in results]),
        points=_concatenate(*[result.points for result in results]),
        status=status,
        message=Notice("combined", f"combined from {len(results)} results ({descriptions})."),
        num_steps=max(0 if result._chains else result.num_steps for result in results),
        loop=None,
        recorded=None,
        warnings=tuple(dict.fromkeys(notice for result in results for notice in result.warnings)),
    )


def _concatenate(*leaves: Any) -> Any:
    """Concatenate leaves; NumPy arrays, which `sample` returns, stay NumPy arrays."""
    return (np if any(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp).concatenate(leaves)
