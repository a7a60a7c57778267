"""Results as ArviZ data: `InferenceData` of ArviZ 0.x, an xarray `DataTree` from 1.0 on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.extras import install_command

Group = Mapping[str, Any]
Dims = Mapping[str, Sequence[str | None]]

_SAMPLE_AXES = ("chain", "draw")


def from_groups(
    posterior: Group,
    sample_stats: Group,
    observed_data: Group,
    posterior_predictive: Group,
    log_likelihood: Group,
    *,
    attributes: Mapping[str, Group],
    known: tuple[Dims, Group] = ({}, {}),
    given: tuple[Dims, Group] = ({}, {}),
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
        known: the names of axes and the labels along them that the target has; those that do not fit are left out.
        given: the same from the caller; `ValueError` where they do not fit.
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
    data = _from_dict(groups, *_axes(groups, known, given))
    for name, entries in attributes.items():
        data[name].attrs.update(entries)
    return data


def _axes(
    groups: Mapping[str, Mapping[str, np.ndarray]], known: tuple[Dims, Group], given: tuple[Dims, Group]
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """The names of all axes of every variable, and the labels along them, as `arviz.from_dict` takes them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in _shapes(groups):  # a log-likelihood has no axes for the parts of one observation
        shapes[name] = max(shapes.get(name, ()), shape, key=len)
    labels = {name: np.asarray(values) for name, values in known[1].items()}
    named = {name: list(axes) for name, axes in known[0].items() if _fits(axes, name, shapes, labels)}
    labels |= {name: _as_labels(name, values) for name, values in given[1].items()}
    named |= {name: _as_names(name, axes, shapes) for name, axes in given[0].items()}
    dims = {
        name: [f"{name}_dim_{axis}" if own is None else own for axis, own in enumerate(named[name])]
        if name in named
        else [f"{name}_dim_{axis}" for axis in range(len(shape))]
        for name, shape in shapes.items()
    }
    _check_lengths(dims, shapes, labels)
    used = {axis for axes in dims.values() for axis in axes}
    unused = sorted(set(given[1]) - used)
    if unused:
        raise ValueError(
            f"`coords` must label axes that there are, {', '.join(sorted(used)) or 'none here'}, got {unused[0]!r}. "
            "`dims={variable: [axis, ...]}` names the axes of a variable."
        )
    return dims, {name: values for name, values in labels.items() if name in used}


def _shapes(groups: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every variable, without the axes of chains and draws."""
    for group, variables in groups.items():
        for name, values in variables.items():
            yield name, values.shape if group == "observed_data" else values.shape[2:]


def _fits(axes: Sequence[str | None], name: str, shapes: Mapping[str, tuple[int, ...]], labels: Group) -> bool:
    """Whether a target's names of axes can be those of its variable."""
    if name not in shapes or len(axes) != len(shapes[name]):
        return False
    clash = any(axis in _SAMPLE_AXES or axis in shapes for axis in axes if axis is not None)
    labelled = [
        (len(labels[axis]), length) for axis, length in zip(axes, shapes[name], strict=True) if axis and axis in labels
    ]
    return not clash and all(number == length for number, length in labelled)


def _as_names(name: str, axes: Any, shapes: Mapping[str, tuple[int, ...]]) -> list[str | None]:
    """The caller's names of the axes of a variable; `ValueError` where they cannot be."""
    if name not in shapes:
        raise ValueError(f"`dims` must name axes of variables among {', '.join(sorted(shapes))}, got {name!r}.")
    names: list[str | None] = [axes] if isinstance(axes, str) else list(axes)
    if len(names) != len(shapes[name]):
        raise ValueError(
            f"`dims` must have a name for each of the {len(shapes[name])} axes of {name!r}, which has shape "
            f"{shapes[name]} beside chain and draw, got {names}."
        )
    for own in names:
        if own is not None and (not isinstance(own, str) or own in (*_SAMPLE_AXES, *shapes)):
            raise ValueError(
                f"`dims` must be names that no variable has, and neither 'chain' nor 'draw', got {own!r} for {name!r}."
            )
    return names


def _as_labels(name: str, values: Any) -> np.ndarray:
    labels = np.asarray(values)
    if labels.ndim != 1:
        raise ValueError(f"`coords` must be one list of labels for {name!r}, got shape {labels.shape}.")
    return labels


def _check_lengths(
    dims: Mapping[str, list[str]], shapes: Mapping[str, tuple[int, ...]], labels: Mapping[str, np.ndarray]
) -> None:
    """Raise where an axis has another length than its labels, or than in another variable."""
    first: dict[str, tuple[str, int]] = {}
    for name, axes in dims.items():
        for axis, length in zip(axes, shapes[name], strict=True):
            if axis in labels and len(labels[axis]) != length:
                raise ValueError(
                    f"`coords` must have a label for each of the {length} places along the axis {axis!r} of {name!r}, "
                    f"got {len(labels[axis])}."
                )
            other, expected = first.setdefault(axis, (name, length))
            if length != expected:
                raise ValueError(
                    f"`dims` gives {name!r} an axis {axis!r} of length {length}, which has length {expected} in "
                    f"{other!r}."
                )


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
