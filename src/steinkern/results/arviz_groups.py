"""The groups and attributes of a result's ArviZ data."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array

from ..core.arrays import as_data
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points
from ..interop.arviz import from_groups
from ..targets.target import AbstractTarget

if TYPE_CHECKING:
    from .result import Result

_PARTICLES = (
    "particles of equal weight, not a Markov chain: R-hat and effective sample sizes do not apply; "
    "arviz.summary(data, kind='stats') leaves them out"
)


def arviz_data(
    result: "Result",
    data: Batch,
    key: KeyLike | None,
    observed: Mapping[str, Any] | None,
    predictive: Mapping[str, Any] | None,
    dims: Mapping[str, Sequence[str | None]] | None,
    coords: Mapping[str, Any] | None,
    log_likelihood: bool,
) -> Any:
    """See `Result.to_arviz`."""
    for name, value in (("observed", observed), ("dims", dims), ("coords", coords)):
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"`{name}` must be a dictionary, got {value!r}.")
    if not isinstance(log_likelihood, bool | np.bool_):
        raise ValueError(f"`log_likelihood` must be True or False, got {log_likelihood!r}.")
    data = as_data(data)
    target = result.target
    target.check_data(data, None)
    seen = target.observed() if observed is None else observed
    check = result.verdict.sentence()  # of `fit`; empty where nothing was checked
    terms = _log_likelihoods(target, result.points_in_jax(), data) if log_likelihood else {}
    return from_groups(
        posterior=result._sites(),
        sample_stats={"lp": result._log_densities(data)},
        observed_data=seen,
        posterior_predictive=result._predictive(key, predictive),
        log_likelihood=_named_as_observed(terms, seen),
        attributes={
            "posterior": {
                "inference_library": "steinkern",
                "sampler": result.sampler_name,
                "status": result.status.value,
                "message": str(result.message),
                "num_steps": result.num_steps,
                **({"check": check} if check else {}),
                "draws": _PARTICLES,
            },
            "sample_stats": _numbers(result),
        },
        known=(target.dims(), target.coords()),
        given=(dims or {}, coords or {}),
    )


def _named_as_observed(terms: dict[str, Array], seen: Mapping[str, Any]) -> dict[str, Array]:
    """Rename the terms of a `Posterior`: as the one observation that has a number for every row, if there is one.

    ArviZ's checks of predictions by leave-one-out look for the log-likelihood under the name of the observation.
    """
    if set(terms) != {"data"} or len(seen) != 1:
        return terms
    ((name, values),) = seen.items()
    return {name: terms["data"]} if np.shape(values) == np.shape(terms["data"])[1:] else terms


def _numbers(result: "Result") -> dict[str, float]:
    """The finite numbers that are known about all particles together."""
    numbers = {"stein_ratio": result.verdict.stein_ratio, "stein_ratio_error": result.verdict.stein_ratio_error}
    quality = getattr(result, "quality", None)  # of a result of `sample`
    if quality is not None:
        entries = {field.name: getattr(quality, field.name) for field in dataclasses.fields(quality)}
        numbers |= {name: float(value) for name, value in entries.items() if isinstance(value, int | float)}
        for name in ("mean_error", "sd_error"):
            numbers[f"largest_{name}"] = float(np.max(entries[f"{name}s"]))
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


@compiled
def _log_likelihoods(target: AbstractTarget, points: Points, data: Batch) -> dict[str, Array]:
    return target.log_likelihoods(points, data)
