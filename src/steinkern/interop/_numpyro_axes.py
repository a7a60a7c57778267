"""The names of the axes of a NumPyro model's sites, from its plates."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp


def axis_names(sites: dict[str, dict[str, Any]]) -> dict[str, tuple[str | None, ...]]:
    """The name of every axis of the sites of a trace; `None` for an axis without one.

    An axis of a plate has the name of the plate. The names in `infer={"event_dims": [...]}` of a sample site, which is
    ArviZ's convention, name the axes of one draw of its distribution. A deterministic site has no distribution: its
    first axes are taken for those of the plates around it.
    """
    named = ("sample", "deterministic")
    return {name: _of_site(site) for name, site in sites.items() if site["type"] in named}


def _of_site(site: dict[str, Any]) -> tuple[str | None, ...]:
    shape = tuple(jnp.shape(site["value"]))
    plates = site["cond_indep_stack"]
    if site["type"] == "sample":
        of_one_draw = len(site["fn"].event_shape)
        event = list(site["infer"].get("event_dims") or ())
    else:
        of_one_draw = len(shape) - max((-frame.dim for frame in plates), default=0)
        event = []
    names: list[str | None] = [None] * len(shape)
    for frame in plates:
        axis = len(shape) - of_one_draw + frame.dim
        if 0 <= axis < len(shape) and shape[axis] == frame.size:
            names[axis] = str(frame.name)
    if event and len(event) == of_one_draw <= len(shape):
        names[len(shape) - of_one_draw :] = [None if name is None else str(name) for name in event]
    return _without_repetition(names)


def _without_repetition(names: Iterable[str | None]) -> tuple[str | None, ...]:
    """The names, with `None` for those that occur before: an array cannot have two axes of one name."""
    unique: list[str | None] = []
    for name in names:
        unique.append(None if name in unique else name)
    return tuple(unique)
