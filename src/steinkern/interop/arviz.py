"""Results as ArviZ data: `InferenceData` of ArviZ 0.x, an xarray `DataTree` from 1.0 on."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.arrays import as_data
from ..core.extras import install_command
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points
from ..targets.target import BoundTarget
from ._model import model_of

Group = Mapping[str, Any]
Dims = Mapping[str, Sequence[str | None]]

_SAMPLE_AXES = ("chain", "draw")
_PARTICLES = (
    "particles of equal weight, not a Markov chain: R-hat and effective sample sizes do not apply; "
    "arviz.summary(data, kind='stats') leaves them out"
)


def arviz_data(
    result: Any,
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
    target = result.known_target
    target.check_data(data, None)
    model = model_of(target.target)
    if observed is None:
        observed = {} if model is None else model.observed()
    check = " ".join(result.diagnostics.sentences())
    terms = _log_likelihoods(target, jnp.asarray(result.points), data) if log_likelihood else {}
    return _from_groups(
        posterior=result._sites(),
        sample_stats={"lp": result._log_densities(data)},
        observed_data=observed,
        posterior_predictive=result._predictive(key, predictive),
        log_likelihood=_named_as_observed(terms, observed),
        attributes={
            "posterior": {
                "inference_library": "steinkern",
                "sampler": type(result.sampler).__name__ if result.sampler is not None else result.settings["sampler"],
                "status": result.status.value,
                "message": str(result.message),
                "num_steps": result.num_steps,
                **({"check": check} if check else {}),
                "draws": _PARTICLES,
            },
            "sample_stats": _numbers(result),
        },
        of_target=({}, {}) if model is None else (model.dims(), model.coords()),
        of_caller=(dims or {}, coords or {}),
    )


def _named_as_observed(terms: dict[str, Array], observations: Mapping[str, Any]) -> dict[str, Array]:
    """The terms of a `Posterior` under the name of its only observation, if that has a number for every row.

    ArviZ's leave-one-out checks look for the log-likelihood under the name of the observation.
    """
    if set(terms) != {"data"} or len(observations) != 1:
        return terms
    ((name, values),) = observations.items()
    return {name: terms["data"]} if np.shape(values) == np.shape(terms["data"])[1:] else terms


def _numbers(result: Any) -> dict[str, float]:
    """The finite numbers of the diagnostics."""
    entries = {field.name: getattr(result.diagnostics, field.name) for field in dataclasses.fields(result.diagnostics)}
    numbers = {name: float(value) for name, value in entries.items() if isinstance(value, float)}
    for name in ("mean_errors", "sd_errors", "r_hat"):
        if len(entries[name]):
            numbers[f"largest_{name}".removesuffix("s")] = float(np.max(entries[name]))
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


@compiled
def _log_likelihoods(target: BoundTarget, points: Points, data: Batch) -> dict[str, Array]:
    """The log-likelihood of every observation at every particle, by its name; `data` for the rows of a `Posterior`."""
    model = model_of(target.target)
    if model is not None:
        return model.log_likelihoods(points)
    if not target.exchangeable:
        return {}
    # One particle at a time bounds the memory of a network's activations.
    return {"data": jax.lax.map(lambda vector: target.log_examples(vector, data), points)}


def _from_groups(
    posterior: Group,
    sample_stats: Group,
    observed_data: Group,
    posterior_predictive: Group,
    log_likelihood: Group,
    *,
    attributes: Mapping[str, Group],
    of_target: tuple[Dims, Group],
    of_caller: tuple[Dims, Group],
) -> Any:
    """ArviZ data with the groups that are not empty.

    Draws have a leading particle axis and become one chain.

    Args:
        posterior: the particles by name.
        sample_stats: numbers about every particle.
        observed_data: the observations, without a particle axis.
        posterior_predictive: draws of the observations for every particle.
        log_likelihood: the log-likelihood of every observation for every particle.
        attributes: for some groups, their attributes.
        of_target: the target's names of axes and labels along them; those that do not fit are left out.
        of_caller: the caller's; ArviZ raises where they do not fit.
    """
    draws = {
        "posterior": posterior,
        "sample_stats": sample_stats,
        "posterior_predictive": posterior_predictive,
        "log_likelihood": log_likelihood,
    }
    groups: dict[str, dict[str, np.ndarray]] = {
        name: {key: np.asarray(value)[None] for key, value in group.items()} for name, group in draws.items()
    }
    groups["observed_data"] = {name: np.asarray(value) for name, value in observed_data.items()}
    groups = {name: group for name, group in groups.items() if group}
    data = _from_dict(groups, *_axes(groups, of_target, of_caller))
    for name, entries in attributes.items():
        data[name].attrs.update(entries)
    return data


def _axes(
    groups: Mapping[str, Mapping[str, np.ndarray]], of_target: tuple[Dims, Group], of_caller: tuple[Dims, Group]
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """The names of all axes of every variable, and the labels along them, as `arviz.from_dict` takes them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in _shapes(groups):  # a log-likelihood has no axes for the parts of one observation
        shapes[name] = max(shapes.get(name, ()), shape, key=len)
    unknown = sorted(set(of_caller[0]) - set(shapes))
    if unknown:
        raise ValueError(f"`dims` must name axes of variables among {', '.join(sorted(shapes))}, got {unknown[0]!r}.")
    labels = {name: np.asarray(values) for name, values in of_target[1].items()}
    named = {name: list(axes) for name, axes in of_target[0].items() if _fits(axes, name, shapes, labels)}
    labels |= {name: np.asarray(values) for name, values in of_caller[1].items()}
    named |= {name: [axes] if isinstance(axes, str) else list(axes) for name, axes in of_caller[0].items()}
    dims = {
        name: [f"{name}_dim_{axis}" if label is None else label for axis, label in enumerate(named[name])]
        if name in named
        else [f"{name}_dim_{axis}" for axis in range(len(shape))]
        for name, shape in shapes.items()
    }
    used = {axis for axes in dims.values() for axis in axes}
    unused = sorted(set(of_caller[1]) - used)
    if unused:
        raise ValueError(
            f"`coords` must label existing axes, here {', '.join(sorted(used)) or 'none'}, got {unused[0]!r}. "
            "`dims={variable: [axis, ...]}` names the axes of a variable."
        )
    return dims, {name: values for name, values in labels.items() if name in used}


def _shapes(groups: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every variable, without the axes of chains and draws."""
    for group, variables in groups.items():
        for name, values in variables.items():
            yield name, values.shape if group == "observed_data" else values.shape[2:]


def _fits(axes: Sequence[str | None], name: str, shapes: Mapping[str, tuple[int, ...]], labels: Group) -> bool:
    """Whether a target's names of axes fit its variable."""
    if name not in shapes or len(axes) != len(shapes[name]):
        return False
    clash = any(axis in _SAMPLE_AXES or axis in shapes for axis in axes if axis is not None)
    labelled = [
        (len(labels[axis]), length) for axis, length in zip(axes, shapes[name], strict=True) if axis and axis in labels
    ]
    return not clash and all(number == length for number, length in labelled)


def _from_dict(groups: dict[str, Any], dims: dict[str, list[str]], coords: dict[str, np.ndarray]) -> Any:
    try:
        import arviz

        old = arviz.__version__.startswith("0.")
    except ModuleNotFoundError:
        old = False
    if old:
        return arviz.from_dict(**groups, dims=dims, coords=coords)
    try:
        from arviz_base import from_dict
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"`to_arviz` needs ArviZ, which is not installed: {install_command('arviz')}"
        ) from error
    return from_dict(groups, dims=dims, coords=coords)
