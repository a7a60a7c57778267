"""Results read from files. Reading executes no code, and checks all that it builds."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.checkpoint_file import CheckpointContents, DamagedCheckpoint, read
from ..core.encoding import class_of_tree, decode, decode_fields, decode_tree, leaves_of_tree
from ..core.keywords import helpful_keywords
from ..core.types import LogDensityFunction, PyTree
from ..targets.constrained import constrained
from ..targets.target import AbstractTarget, as_target
from .placeholders import AbsentSampler, AbsentTarget
from .report.saved import cut_to_bounds
from .result import ChainHistory, Result
from .saving import encoded_fields
from .verdict import Measure, Verdict

_FAULTS = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError)
_KINDS = ("Result", "Sampled")
_CLOSE = 1e-2  # relative to a particle's largest coordinate; another support gives another number altogether


@helpful_keywords
def load(
    path: str | os.PathLike[str], *, target: AbstractTarget | LogDensityFunction | None = None, like: PyTree = None
) -> Result:
    """Read a result that `result.save(path)` wrote.

    ```python
    result.save("banana.result")
    again = steinkern.load("banana.result")                          # summary, predict, report, resample
    again = steinkern.load("banana.result", target=log_density)      # scores and to_arviz as well
    ```

    The file holds particles, history, warnings with their codes, verdict, quality, settings and versions, and no
    functions. The result is a `Result`, or a `Sampled` where `sample` made it. It has no state of the sampler: a `fit`
    from it starts at its particles. `settings["versions"]` holds the versions of the libraries that made it.

    Particles that consist of dictionaries, lists, tuples and arrays come back as they were. Those of another class,
    such as an Equinox module or a named tuple, need `like`, because a file does not name classes to construct.

    Reading executes no code from the file. A file that is truncated, altered or of another kind is refused.

    Args:
        path: the file.
        target: the target of the run, as for `fit`. Shared parameters take the values that they have in the file. The
            target is checked to have the coordinates of the run; that it is the same density is up to you.
        like: one particle, or any pytree of its structure, for particles of other classes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a readable result, or `like` or `target` do not fit it.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"`path` must be a file that `result.save(path)` wrote, got {path!r}.")
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"`path` must be a file that `result.save(path)` wrote, but there is no {place}.")
    try:
        contents = read(place, kind="result")
    except DamagedCheckpoint as error:
        raise ValueError(f"`path` is not a result: {error} Name a file that `result.save(path)` wrote.") from error
    given = None if target is None else as_target(target)
    notes, arrays = contents.notes, contents.arrays
    try:
        kind = _kind(notes["class"])
        particle_class, shared_class = class_of_tree(notes["particles"]), class_of_tree(notes["shared"])
        shapes = [np.shape(leaf) for leaf in leaves_of_tree(notes["particles"], arrays)]
        shared_leaves = leaves_of_tree(notes["shared"], arrays)
    except _FAULTS as error:
        raise _unreadable(place) from error
    shared = None if given is None else given.shared
    if shared_class and shared is None:
        raise ValueError(
            f"`target` is missing: the shared parameters in {place} are of the class {shared_class}, which a file does "
            "not hold. Give the target as the run had it, with `shared=`."
        )
    if shared is not None and len(jax.tree_util.tree_leaves(shared)) != len(shared_leaves):
        raise ValueError(
            f"`target` must share {len(shared_leaves)} arrays as the run did, got "
            f"{len(jax.tree_util.tree_leaves(shared))}. Give the target of the run."
        )
    structure = _structure(particle_class, shapes, like, given)
    try:
        result = _restore(kind, contents, structure, shared)
        _check(result)
    except _FAULTS as error:
        raise _unreadable(place) from error
    return result if given is None else dataclasses.replace(result, target=_bound(given, result))


def _kind(name: Any) -> type[Result]:
    """The class of a result by its name. That of `sample` is in a package above this one, which may not be loaded."""
    if name not in _KINDS:
        raise ValueError("no class of results")
    kind: type[Result] = getattr(sys.modules[__name__.partition(".")[0]], name)
    return kind


def _unreadable(path: Path) -> ValueError:
    return ValueError(
        f"`path` is not a result: {path} was altered, or written by another version of steinkern. Name a file that "
        "`result.save(path)` of this version wrote."
    )


def _structure(needed: str, shapes: list[tuple[int, ...]], like: PyTree, target: AbstractTarget | None) -> Any:
    """The tree structure for the particles; `None` for that of the file."""
    if like is None and target is not None and target.space is not None:
        return target.space.layout.structure
    if like is None:
        if needed:
            raise ValueError(
                f"`like` is missing: the particles are of the class {needed}, which a file does not hold. Give one "
                "particle, or any pytree whose arrays have the shapes "
                f"{[shape[1:] for shape in shapes]}, as in `steinkern.load(path, like=network)`."
            )
        return None
    leaves, structure = jax.tree_util.tree_flatten(like)
    given = [tuple(np.shape(leaf)) for leaf in leaves]
    if given != shapes and given != [shape[1:] for shape in shapes]:
        raise ValueError(
            f"`like` must be one particle, with arrays of shapes {[shape[1:] for shape in shapes]}, got {given}."
        )
    return structure


def _restore(kind: type[Result], contents: CheckpointContents, structure: Any, shared: PyTree) -> Result:
    notes, arrays = contents.notes, contents.arrays
    names = encoded_fields(kind)
    encoded = dict(notes["fields"])
    recorded = encoded["history"]["particles"]
    encoded["history"] = {**encoded["history"], "particles": None}
    if names["history"] is ChainHistory and "velocity_norm" in encoded["history"]:  # a file of an earlier version
        encoded["history"]["mean_score"] = encoded["history"].pop("velocity_norm")
    fields = [field for field in dataclasses.fields(kind) if field.name in names]
    known = decode_fields(kind, fields, encoded, arrays)
    if recorded is not None:
        particles = decode_tree(recorded, arrays, structure)
        known["history"] = dataclasses.replace(known["history"], particles=particles)
    if known["num_steps"] != contents.step:
        raise ValueError("the number of steps is written twice, and differs")
    leaves, shared_structure = jax.tree_util.tree_flatten(shared)
    shared_structure = None if shared is None else shared_structure
    sampler = notes["sampler"]
    return kind(
        particles=decode_tree(notes["particles"], arrays, structure),
        points=decode_tree(notes["points"], arrays),
        target=AbsentTarget(
            description=cut_to_bounds(notes["target"]),
            shared=decode_tree(notes["shared"], arrays, shared_structure, leaves),
            power=decode(float, notes["power"], arrays),
        ),
        sampler=AbsentSampler(
            name=decode(str, sampler["name"], arrays),
            description=cut_to_bounds(sampler["description"]),
            needs_gradient=decode(bool, sampler["needs gradient"], arrays),
        ),
        loop=None,
        settings={**cut_to_bounds(contents.settings), "versions": _texts(cut_to_bounds(notes["versions"]))},
        **known,
    )


def _texts(value: Any) -> dict[str, str]:
    """A dictionary of texts, such as versions by their libraries."""
    return {str(name): str(text) for name, text in value.items()}


def _check(result: Result) -> None:
    """Raise where the shapes of a result's arrays do not agree, so that its methods need not check."""
    points, history = result.points, result.history
    n, d = points.shape
    _ensure(n > 0 and d > 0 and _is_float(points))
    leaves = jax.tree_util.tree_leaves(result.particles)
    _ensure(len(leaves) > 0 and all(_is_float(leaf) and np.shape(leaf)[:1] == (n,) for leaf in leaves))
    records = history.step.shape
    _ensure(len(records) == 1 and history.step.dtype.kind in "iu")
    for values in history.traces().values():
        _ensure(values.shape == records and _is_float(values))
    shapes = [(*records, *np.shape(leaf)) for leaf in leaves]
    recorded = jax.tree_util.tree_leaves(history.particles)
    _ensure(history.particles is None or [np.shape(leaf) for leaf in recorded] == shapes)
    _check_verdict(result.verdict)
    quality = getattr(result, "quality", None)
    for field in () if quality is None else dataclasses.fields(quality):
        value = getattr(quality, field.name)
        _ensure(not isinstance(value, np.ndarray) or (value.ndim == 1 and value.size > 0 and _is_float(value)))
    log_densities = getattr(result, "log_densities", None)
    _ensure(log_densities is None or (log_densities.shape == (n,) and _is_float(log_densities)))


def _check_verdict(verdict: Verdict) -> None:
    _ensure(verdict.axes.ndim == 2 and _is_float(verdict.axes))
    for field in dataclasses.fields(verdict):
        measure = getattr(verdict, field.name)
        if not isinstance(measure, Measure):
            continue
        (number,) = measure.value.shape
        along_axes = field.name.startswith("axis")
        _ensure(_is_float(measure.value) and _is_float(measure.error) and measure.error.shape == (number,))
        for marks in (measure.low, measure.high, measure.unclear):
            _ensure(marks.shape == (number,) and marks.dtype == np.bool_)
        _ensure(number <= len(verdict.axes) if along_axes else not verdict.names or number <= len(verdict.names))
    _ensure(not verdict.names or verdict.axes.shape[1] <= len(verdict.names))
    _ensure(len(verdict.spread.value) == len(verdict.shift.value))


def _ensure(condition: bool) -> None:
    if not condition:
        raise ValueError("the arrays do not fit together")


def _is_float(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _bound(target: AbstractTarget, result: Result) -> AbstractTarget:
    """The caller's target bound to the particles' space, with the shared parameters and the power of the result."""
    particle = jax.tree.map(lambda leaf: leaf[0], result.particles)
    bound = target.bind(particle)
    size = bound.bound_space.layout.size
    if size != result.points.shape[1]:
        raise ValueError(
            f"`target` has {size} unconstrained coordinates, the result {result.points.shape[1]}: the constraints of "
            "the run were others. Give the target of the run."
        )
    there = jax.tree_util.tree_leaves(constrained(bound, jnp.asarray(result.points[:1])))
    for leaf, other in zip(jax.tree_util.tree_leaves(particle), there, strict=True):
        wanted, got = np.asarray(leaf, np.float64), np.asarray(other[0], np.float64)
        if np.max(np.abs(wanted - got), initial=0.0) > _CLOSE * np.max(np.abs(wanted), initial=1e-300):
            raise ValueError(
                "`target` maps the result's unconstrained coordinates to other parameters: the constraints of the run "
                "were others. Give the target of the run, with its `support=`."
            )
    return bound.sharing(result.shared).tempered(result.target.power)
