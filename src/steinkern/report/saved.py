"""The record of a run on disk, from its newest whole checkpoint; reading it executes nothing."""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._types import Batch, PyTree
from ..checkpoint import Saved, newest
from ..target import AbstractTarget
from .facts import is_real, target_name
from .record import RECORD_PARTICLES, UNCONSTRAINED, Frames, Record, Trace, by_name, chosen_lines, discrepancy

_NO_TARGET = (
    "A checkpoint holds no target, so the discrepancy is not known here: give `--target FILE.py:NAME`, or call "
    "`result.report(directory)` where the run is."
)
_COORDINATES = (
    "These are the unconstrained coordinates in which the sampler works: a checkpoint does not hold the constraints. "
    "`--target FILE.py:NAME`, or `result.report(directory)` where the run is, gives the sites in their own."
)


def read_run(
    directory: str | os.PathLike[str],
    target: AbstractTarget | None = None,
    data: Batch = None,
    *,
    title: str | None = None,
) -> Record:
    """What the newest whole checkpoint in a directory, or in its `checkpoint`, tells of its run.

    Args:
        directory: that of `fit(..., checkpoint=directory)`, or of `steinkern sample`.
        target: bound to the particles' space; it brings the particles to their own coordinates and measures them.
        data: those of the run, where the target has any.
        title: of the page; the target's name where there is none.
    """
    places = [Path(directory), Path(directory) / "checkpoint"]
    saved = next((found for place in places if (found := newest(place)) is not None), None)
    if saved is None:
        raise ValueError(
            f"`directory` {directory} holds no checkpoint of a run. Name the directory that `fit(..., checkpoint=...)` "
            "or `steinkern sample --out` wrote to."
        )
    points, frames, step, lines = _arrays(saved)
    kept = chosen_lines(len(step))
    if target is None:
        sites, flow, note = _by_layout(saved, points), None, _coordinates_note(saved)
        drawn = sites
        ksd = Trace(np.zeros(0), np.zeros(0), _NO_TARGET)
        if frames is not None:
            flow = Frames(step[kept], _by_layout(saved, frames[kept], 2))
    else:
        ends = _in(target, points)
        own = _constrained(target, ends, 1)
        drawn, sites, note = by_name(own), {n: np.asarray(v) for n, v in target.sites(own).items()}, ""
        if frames is None:
            flow = None
            ksd = discrepancy(target, ends[None], np.array([saved.step]), data, RECORD_PARTICLES)
        else:
            kept_points = _in(target, frames[kept])
            flow = Frames(step[kept], by_name(_constrained(target, kept_points, 2)))
            ksd = discrepancy(target, kept_points, step[kept], data, "")
    return Record(
        title=title or target_name(saved.settings.get("target")),
        status="checkpoint",
        message=f"a checkpoint after {saved.step} steps; how the run ended is not written in it.",
        num_steps=saved.step,
        num_particles=len(points),
        settings=saved.settings,
        versions=_versions(saved),
        sites=sites,
        drawn=drawn,
        frames=flow,
        traces={
            "velocity norm": Trace(step, lines[0]),
            "KSD": ksd,
            "Stein ratio": Trace(step, lines[2]),
            "step size": Trace(step, lines[1]),
        },
        advice=(
            "The same call of `fit` with this `checkpoint` (or `steinkern sample` with `--resume`) goes on from it.",
        ),
        coordinates_note=note,
        flow_note="" if flow else RECORD_PARTICLES,
    )


def _arrays(saved: Saved) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, list[np.ndarray]]:
    """The points, those of the history, the steps of its lines, and velocity norm, step size and Stein ratio there."""
    place = saved.notes.get("points")
    with_particles = bool(saved.settings.get("record_particles"))
    number = 5 if with_particles else 4
    own = saved.arrays[-number:]
    known = isinstance(place, int) and 0 <= place < len(saved.arrays) and saved.arrays[place].ndim == 2
    if not known or len(own) < number or len({array.shape[:1] for array in own} - {()}) != 1:
        raise ValueError(
            f"`directory` holds a checkpoint (step {saved.step}) by a version that did not write where its particles "
            "are. Go on from it by one step, which writes a new one."
        )
    assert isinstance(place, int)
    return saved.arrays[place], own[4] if with_particles else None, own[0], own[1:4]


def _layout(saved: Saved) -> tuple[list[str], list[list[int]], Any]:
    """The names and shapes of the leaves, and their supports where the space says them."""
    try:
        space = saved.settings["target"]["space"]
        return list(space["layout"]["names"]), list(space["layout"]["shapes"]), space.get("supports")
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"`directory` holds a checkpoint (step {saved.step}) that does not say how its parameters are laid out. "
            "Give `--target FILE.py:NAME`."
        ) from error


def _by_layout(saved: Saved, points: np.ndarray, batch_axes: int = 1) -> dict[str, np.ndarray]:
    """The columns of unconstrained points by the names of the leaves that they belong to, and what they are."""
    names, shapes, supports = _layout(saved)
    real = [supports is not None and is_real(supports[place]) for place in range(len(names))]
    names = [("" if own else UNCONSTRAINED) + (name or "x") for name, own in zip(names, real, strict=True)]
    sizes = [int(np.prod(shape)) for shape in shapes]
    pieces = np.split(points, np.cumsum(sizes)[:-1], axis=-1)
    return {
        name: piece.reshape(*points.shape[:batch_axes], *shape)
        for name, piece, shape in zip(names, pieces, shapes, strict=True)
    }


def _coordinates_note(saved: Saved) -> str:
    supports = _layout(saved)[2]
    return "" if supports is not None and all(map(is_real, supports)) else _COORDINATES


def _versions(saved: Saved) -> dict[str, str]:
    versions: Any = saved.notes.get("versions")
    return {str(name): str(number) for name, number in versions.items()} if isinstance(versions, dict) else {}


def _in(target: AbstractTarget, points: Any) -> Array:
    """Points of a checkpoint in the precision of the target, seen to be of its size."""
    assert target.space is not None
    layout = target.space.layout
    if points.shape[-1] != layout.size:
        raise ValueError(
            f"`target` has {layout.size} unconstrained coordinates, the checkpoint {points.shape[-1]}: it is of "
            "another target. Name the one of the run, or none."
        )
    return jnp.asarray(np.asarray(points), layout.dtype)


@eqx.filter_jit
def _constrained(target: AbstractTarget, points: Array, batch_axes: int) -> PyTree:
    assert target.space is not None
    constrain = target.space.constrain
    for _ in range(batch_axes):
        constrain = jax.vmap(constrain)
    return constrain(points)
