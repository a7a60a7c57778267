"""Results as ArviZ data: `InferenceData` of ArviZ 0.x, an xarray `DataTree` from 1.0 on."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.arrays import as_concrete_key, as_data
from ..core.extras import install_command
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points, PyTree
from ..targets.checks import batch_length
from ..targets.constrained import constrained
from ..targets.target import BoundTarget
from ._model import AbstractModelTarget, model_of

_PARTICLES = (
    "particles of equal weight, not a Markov chain: R-hat and effective sample sizes do not apply; "
    "arviz.summary(data, kind='stats') leaves them out"
)
_MAX_TERMS = 50_000_000  # observations times draws that are exported


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
    data = as_data(data)
    target = result.known_target
    target.check_data(data, None)
    model = model_of(target.target)
    if observed is None:
        observed = {} if model is None else model.observed()
    points, particles, stats, origin = result.points[None], result.particles, {}, _PARTICLES
    if (recorded := result.recorded) is not None:
        rows = batch_length(data) if target.exchangeable else sum(map(np.size, observed.values()))
        numbers = recorded.log_densities.size * rows if log_likelihood or key is not None else 0
        spacing = max(1, -(-numbers // _MAX_TERMS))
        points, origin = recorded.points[:, ::spacing], "draws of the chains of `sample`"
        stats = {"lp": recorded.log_densities[:, ::spacing], "acceptance_rate": recorded.acceptance[:, ::spacing]}
        particles = constrained(target, jax.device_put(points.reshape(-1, points.shape[-1])))
    axes, vectors = points.shape[:2], jax.device_put(points.reshape(-1, points.shape[-1]))
    draws = {
        "posterior": result._sites(particles),
        "posterior_predictive": _predictive(model, key, particles),
        "log_likelihood": _named_as_observed(
            _log_likelihoods(target, vectors, data) if log_likelihood else {}, observed
        ),
    }
    groups = {
        group: {name: np.asarray(value).reshape(*axes, *np.shape(value)[1:]) for name, value in values.items()}
        for group, values in draws.items()
    }
    groups["sample_stats"] = stats or {"lp": np.asarray(_log_densities(target, vectors, data))[None]}
    groups["posterior_predictive"] |= _given_predictive(result, predictive)
    shapes = {name: np.shape(values) for name, values in observed.items()}
    for group in groups.values():
        for name, values in group.items():  # a log-likelihood has no axes for the parts of one observation
            shapes[name] = max(shapes.get(name, ()), np.shape(values)[2:], key=len)
    groups["observed_data"] = {name: np.asarray(values) for name, values in observed.items()}
    full = {name: group for name, group in groups.items() if group}
    tree = _from_dict(full, *_axes(shapes, model, dims or {}, coords or {}))
    check = " ".join(result.diagnostics.sentences())
    tree["posterior"].attrs |= {
        "inference_library": "steinkern",
        "sampler": type(result.sampler).__name__ if result.sampler is not None else result.settings["sampler"],
        "status": result.status.value,
        "message": str(result.message),
        "num_steps": result.num_steps,
        **({"check": check} if check else {}),
        "draws": origin,
    }
    tree["sample_stats"].attrs |= _numbers(result)
    return tree


def _predictive(model: AbstractModelTarget | None, key: KeyLike | None, particles: PyTree) -> dict[str, Any]:
    """A draw from the model's predictive distribution at every particle, by name; none without a key."""
    if key is None:
        return {}
    draws = {} if model is None else model.predictive(as_concrete_key(key), jax.tree.map(jnp.asarray, particles))
    if not draws:
        raise ValueError(
            "`key` draws from the predictive distribution of a NumPyro or PyMC model, and this target is none. Give "
            "draws as `predictive={name: array}`, such as the `values` of `result.predict(...)`."
        )
    return draws


def _given_predictive(result: Any, predictive: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """The caller's predictive draws, with an axis for their chain."""
    n = len(result.points)
    for name, value in (predictive or {}).items():
        if np.shape(value)[:1] != (n,):
            raise ValueError(
                f"`predictive` must hold arrays with a leading axis of {n} particles, got shape {np.shape(value)} for "
                f"{name!r}."
            )
    return {name: np.asarray(value)[None] for name, value in (predictive or {}).items()}


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


_log_densities = compiled(BoundTarget.log_densities)


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


def _axes(
    shapes: Mapping[str, tuple[int, ...]],
    model: AbstractModelTarget | None,
    dims: Mapping[str, Sequence[str | None]],
    coords: Mapping[str, Any],
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """The names of all axes of every variable, and the labels along them, as `arviz.from_dict` takes them.

    Args:
        shapes: of the variables by name, without the axes of chains and draws.
        model: whose names of axes are used where the caller gives none, unless they clash with others.
        dims: the caller's names; ArviZ raises where they do not fit.
        coords: the caller's labels; ArviZ raises where they do not fit.
    """
    unknown = sorted(set(dims) - set(shapes))
    if unknown:
        raise ValueError(f"`dims` must name axes of variables among {', '.join(sorted(shapes))}, got {unknown[0]!r}.")
    of_model = {} if model is None else model.dims()
    clashing = {"chain", "draw", *shapes}
    named = {**{name: axes for name, axes in of_model.items() if not clashing.intersection(axes)}, **dims}
    filled = {}
    for name, shape in shapes.items():
        axes = named.get(name, [None] * len(shape))
        axes = [axes] if isinstance(axes, str) else axes
        filled[name] = [f"{name}_dim_{i}" if axis is None else axis for i, axis in enumerate(axes)]
    used = {axis for axes in filled.values() for axis in axes}
    unused = sorted(set(coords) - used)
    if unused:
        raise ValueError(
            f"`coords` must label existing axes, here {', '.join(sorted(used)) or 'none'}, got {unused[0]!r}. "
            "`dims={variable: [axis, ...]}` names the axes of a variable."
        )
    labels = {**({} if model is None else model.coords()), **coords}
    return filled, {name: np.asarray(values) for name, values in labels.items() if name in used}


def _from_dict(groups: dict[str, Any], dims: dict[str, list[str]], coords: dict[str, np.ndarray]) -> Any:
    try:
        import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"`to_arviz` needs ArviZ, which is not installed: {install_command('arviz')}"
        ) from error
    if arviz.__version__.startswith("0."):
        return arviz.from_dict(**groups, dims=dims, coords=coords)
    return arviz.from_dict(groups, dims=dims, coords=coords)
