"""Reads the record of a run from its newest intact checkpoint, without executing any of its code."""

import itertools
import math
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.checkpoint import newest
from ...core.checkpoint_file import LONGEST_AXIS, MOST_AXES, CheckpointContents
from ...core.files import machine_memory
from ...core.notices import Notice, Phrase, RefusalError, quantity
from ...core.types import Batch
from ...targets.constrained import constrained
from ...targets.target import AbstractTarget
from .facts import is_real, target_name
from .record import RECORD_PARTICLES, UNCONSTRAINED, Frames, Record, Trace, by_name, chosen_lines, discrepancy

_TRIES = 8  # the most checkpoints read in a directory; a run keeps two
_ROOM = 0.25  # share of the machine's memory for a checkpoint: a page needs several copies of its arrays
_DEEPEST, _MOST_ENTRIES, _LONGEST_TEXT = 40, 100_000, 2_000  # limits of the JSON that a page shows
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
    """The record of a run from the newest intact checkpoint in a directory or in its subdirectory `checkpoint`.

    Args:
        directory: that of `fit(..., checkpoint=directory)`, or of `steinkern sample`.
        target: the run's target, bound to the particles' space. With it the record has the particles in constrained
            coordinates and their discrepancy.
        data: the data of the run, if any.
        title: of the page; the target's name by default.
    """
    places = [Path(directory), Path(directory) / "checkpoint"]
    most = _ROOM * machine_memory()
    read = (newest(place, most=most, tries=_TRIES) for place in places)
    saved = next((found for found in read if found is not None), None)
    if saved is None:
        name = "Name the directory that `fit(..., checkpoint=...)` or `steinkern sample --out` wrote to."
        raise RefusalError(Notice("no-run", Phrase.DIRECTORY, f" {directory} holds no readable run. {name}"))
    settings = {name[:_LONGEST_TEXT]: cut_to_bounds(entry) for name, entry in saved.settings.items()}
    points, frames, step, lines = _arrays(saved)
    kept = chosen_lines(len(step))
    if target is None:
        sites, flow, note = _by_layout(saved, points), None, _coordinates_note(saved, points.shape[1])
        drawn = sites
        ksd = Trace(np.zeros(0), np.zeros(0), _NO_TARGET)
        if frames is not None:
            flow = Frames(step[kept], _by_layout(saved, frames[kept], 2))
    else:
        ends = _in(target, points)
        own = constrained(target, ends)
        drawn, sites, note = by_name(own), {n: np.asarray(v) for n, v in target.sites(own).items()}, ""
        if frames is None:
            flow = None
            ksd = discrepancy(target, np.asarray(ends)[None], np.array([saved.step]), data, RECORD_PARTICLES)
        else:
            kept_points = _in(target, frames[kept])
            flow = Frames(step[kept], by_name(constrained(target, kept_points, 2)))
            ksd = discrepancy(target, np.asarray(kept_points), step[kept], data, "")
    return Record(
        title=title or target_name(settings.get("target")),
        status="checkpoint",
        message=f"a checkpoint after {quantity(saved.step, 'step')}; how the run ended is not written in it.",
        num_steps=saved.step,
        num_particles=len(points),
        settings=settings,
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


def _arrays(saved: CheckpointContents) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, list[np.ndarray]]:
    """The points, the recorded points, the recorded steps, and velocity norm, step size and Stein ratio there."""
    place = saved.notes.get("points")
    with_particles = bool(saved.settings.get("record_particles"))
    number = 5 if with_particles else 4
    own = saved.arrays[-number:]
    if not (isinstance(place, int) and 0 <= place < len(saved.arrays)) or len(own) < number:
        raise _unreadable(saved, "it does not say where its particles are")
    points, step, lines, frames = saved.arrays[place], own[0], own[1:4], own[4] if with_particles else None
    if points.ndim != 2 or 0 in points.shape or not _is_float(points):
        raise _unreadable(saved, "its particles are no matrix of numbers")
    if step.ndim != 1 or step.dtype.kind not in "iu" or any(a.shape != step.shape or not _is_float(a) for a in lines):
        raise _unreadable(saved, "its history is not as a run writes it")
    if frames is not None and (frames.shape != (len(step), *points.shape) or not len(step) or not _is_float(frames)):
        raise _unreadable(saved, "its history has other particles")
    return points, frames, step, lines


def _is_float(array: np.ndarray) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _layout(saved: CheckpointContents, size: int) -> tuple[list[str], list[list[int]], list[Any] | None]:
    """The names, shapes and, where known, supports of the leaves; checked to have `size` coordinates."""
    inside: Any = saved.settings
    for name in ("target", "space"):
        inside = inside.get(name) if isinstance(inside, dict) else None
    layout = inside.get("layout") if isinstance(inside, dict) else None
    names, shapes = (layout.get(name) for name in ("names", "shapes")) if isinstance(layout, dict) else (None, None)
    if not (isinstance(names, list) and isinstance(shapes, list)):
        raise _unreadable(saved, "it does not say how its parameters are laid out")
    supports = inside.get("supports")
    known = len(names) == len(shapes) and all(isinstance(name, str) for name in names)
    if not (known and all(map(_is_shape, shapes)) and sum(map(math.prod, shapes)) == size):
        raise _unreadable(saved, "its layout is not that of its particles")
    if supports is not None and not (isinstance(supports, list) and len(supports) == len(names)):
        raise _unreadable(saved, "its supports are not those of its parameters")
    return names, shapes, supports


def _is_shape(axes: Any) -> bool:
    """Whether a JSON value is a valid shape of an array."""
    return (
        isinstance(axes, list)
        and len(axes) <= MOST_AXES
        and all(isinstance(axis, int) and 0 <= axis <= LONGEST_AXIS for axis in axes)
    )


def _unreadable(saved: CheckpointContents, why: str) -> ValueError:
    return ValueError(
        f"`directory` holds no readable run: its checkpoint at step {saved.step} was altered, or written by another "
        f"version, since {why}. Go on from it by one step, which writes a new one, or give `--target FILE.py:NAME`."
    )


def cut_to_bounds(value: Any, depth: int = 0, left: list[int] | None = None) -> Any:
    """A copy of JSON with bounded depth, entries, numbers and texts; an ellipsis marks most cuts."""
    left = [_MOST_ENTRIES] if left is None else left
    left[0] -= 1
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…"
    if isinstance(value, int) and abs(value) >= 2**64:
        return "…"
    if not isinstance(value, dict | list):
        return value
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, list):
        return [cut_to_bounds(entry, depth + 1, left) for entry in itertools.takewhile(lambda _: left[0] > 0, value)]
    kept = itertools.takewhile(lambda _: left[0] > 0, value.items())
    return {name[:_LONGEST_TEXT]: cut_to_bounds(entry, depth + 1, left) for name, entry in kept}


def _by_layout(saved: CheckpointContents, points: np.ndarray, batch_axes: int = 1) -> dict[str, np.ndarray]:
    """The unconstrained points by leaf name, with the prefix "unconstrained" for leaves that may be constrained."""
    names, shapes, supports = _layout(saved, points.shape[-1])
    real = [supports is not None and is_real(supports[place]) for place in range(len(names))]
    names = [
        ("" if own else UNCONSTRAINED) + (name[:_LONGEST_TEXT] or "x") for name, own in zip(names, real, strict=True)
    ]
    sizes = [math.prod(shape) for shape in shapes]
    pieces = np.split(points, np.cumsum(sizes)[:-1], axis=-1)
    return {
        name: piece.reshape(*points.shape[:batch_axes], *shape)
        for name, piece, shape in zip(names, pieces, shapes, strict=True)
    }


def _coordinates_note(saved: CheckpointContents, size: int) -> str:
    supports = _layout(saved, size)[2]
    return "" if supports is not None and all(map(is_real, supports)) else _COORDINATES


def _versions(saved: CheckpointContents) -> dict[str, str]:
    versions: Any = cut_to_bounds(saved.notes.get("versions"))
    return {str(name): str(number) for name, number in versions.items()} if isinstance(versions, dict) else {}


def _in(target: AbstractTarget, points: Any) -> Array:
    """Points of a checkpoint in the target's precision, checked to have its number of coordinates."""
    layout = target.bound_space.layout
    if points.shape[-1] != layout.size:
        sizes = f" has {layout.size} unconstrained coordinates, the checkpoint {points.shape[-1]}"
        way_out = "it is of another target. Name the one of the run, or none."
        raise RefusalError(Notice("other-target", Phrase.TARGET, f"{sizes}: {way_out}"))
    return jnp.asarray(np.asarray(points), layout.dtype)
