"""The record of a run in memory, from its result."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ...core.arrays import as_data
from ...core.files import environment
from ...core.programs import compiled
from ...core.types import Batch, KeyLike, PyTree
from ...targets.target import AbstractTarget
from ..placeholders import AbsentTarget
from .facts import target_name
from .record import Frames, Record, Trace, by_name, chosen_lines, discrepancy, shared_in_words

if TYPE_CHECKING:
    from ..result import Result


def record_of(
    result: "Result",
    data: Batch,
    title: str | None,
    key: KeyLike | None,
    observed: Mapping[str, Any] | None,
    predictive: Mapping[str, Any] | None,
) -> Record:
    """All that the page of a result shows; see `Result.report`."""
    data = as_data(data)
    if data is not None:
        result.target.check_data(data, None)
    draws = result._predictive(key, predictive)
    seen = dict(result.target.observed() if observed is None else observed) if draws else {}
    for name in set(draws) & set(seen):
        if np.shape(draws[name])[1:] != np.shape(seen[name]):
            raise ValueError(
                f"`predictive` must hold a draw of {name!r} in the shape of its observation, {np.shape(seen[name])}, "
                f"for every particle, got {np.shape(draws[name])}."
            )
    history = result.history
    settings = result._description()
    kept = chosen_lines(len(history.step))
    recorded = None if history.particles is None else jax.tree.map(lambda leaf: leaf[kept], history.particles)
    return Record(
        title=target_name(settings["target"]) if title is None else title,
        status=result.status.value,
        message=result.message,
        num_steps=result.num_steps,
        num_particles=len(result.points),
        settings=settings,
        versions=result.settings.get("versions") or environment(),
        sites={name: np.asarray(values) for name, values in result._sites().items()},
        drawn=by_name(result.particles),
        frames=None if recorded is None else Frames(history.step[kept], by_name(recorded)),
        traces={
            **{name: Trace(history.step, values) for name, values in history.traces().items()},
            "KSD": _discrepancy(result, recorded, history.step[kept], data),
        },
        advice=result.warnings,
        check=result.verdict.sentence(),
        shared=shared_in_words(result.shared),
        observed=seen,
        predictive=draws,
        flow_note=result._no_flow if recorded is None else result._flow,
        chains=result._chains,
    )


def _discrepancy(result: "Result", recorded: PyTree | None, step: np.ndarray, data: Batch) -> Trace:
    """The kernel Stein discrepancy at the recorded iterations, or a note on why there is none."""
    nothing = np.zeros(0)
    if isinstance(result.target, AbsentTarget):
        return Trace(nothing, nothing, "It needs the target: give it as `steinkern.load(path, target=...)`.")
    if not result.sampler.differentiates:
        return Trace(nothing, nothing, "It needs the gradient of the target, which this sampler does without.")
    if result.settings.get("data shapes") and data is None:
        return Trace(nothing, nothing, "It needs the data: give them as `result.report(directory, data)`.")
    if recorded is None or result.shared is not None:
        why = "What the particles share was another at earlier steps." if recorded is not None else result._no_flow
        last = np.asarray(result.points_in_jax())[None]
        return discrepancy(result.target, last, np.array([result.num_steps]), data, why)
    result._warn_of_rounding()
    return discrepancy(result.target, np.asarray(_unconstrain(result.target, recorded)), step, data, "")


@compiled
def _unconstrain(target: AbstractTarget, recorded: PyTree) -> Float[Array, "k n d"]:
    return jax.vmap(jax.vmap(target.bound_space.unconstrain))(recorded)
