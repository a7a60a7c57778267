"""A run on disk: what it is, what its checkpoints hold, and how it goes on from one."""

import platform
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ._types import Batch, Key, Points, PyTree
from .checkpoint import Saved, Store
from .description import as_numpy, described, fingerprint, is_key
from .history import Record, Recorder
from .loop import LoopState
from .sampler import AbstractSampler
from .target import AbstractTarget

_LOOKED_AT = 8  # particles whose log densities stand for the code of the target


def settings_of(
    key: Key,
    target: AbstractTarget,
    sampler: AbstractSampler,
    given: PyTree,
    points: Points,
    data: Batch,
    tempering: Callable[[Array], Array] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """What a run is: equal settings, the same run.

    A function's code cannot be compared between processes, so a log density is known here by its name and by what it
    closes over; `restored` compares its values.

    Args:
        key: of the run.
        target: bound to the space of the particles.
        sampler: of the run.
        given: what the run starts from: particles, or the state of an earlier run.
        points: the first particles as one array.
        data: of the run.
        tempering: of the run.
        options: numbers that change what is computed or recorded.
    """
    n, d = points.shape
    shapes = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(data)]
    return {
        "number of particles": n,
        "number of coordinates": d,
        "dtype": points.dtype.name,
        **options,
        "sampler": described(sampler),
        "target": described(target),
        "tempering": described(tempering),
        "data shapes": shapes,
        "data": fingerprint(data),
        "first particles": fingerprint(given),
        "key": [str(jr.key_impl(key)), np.asarray(jr.key_data(key)).tolist()],
    }


def save(store: Store, loop: LoopState, recorder: Recorder, log_densities: Array) -> None:
    """Put the run on disk as it is; `log_densities` are those at the first particles."""
    leaves = [as_numpy(leaf) for leaf in jax.tree_util.tree_leaves((loop, recorder.lines()))]
    notes = {"versions": _versions(), "stride": recorder.every, "log densities": _looked_at(log_densities)}
    store.save(int(loop.step), leaves, notes)


def restored(store: Store, loop: LoopState, recorder: Recorder, keep_points: bool, log_densities: Array) -> LoopState:
    """The loop of the newest whole checkpoint, its history put into `recorder`; `loop` itself where there is none.

    Args:
        store: where the checkpoints are.
        loop: the loop before the first step, for the structure of its state.
        recorder: an empty one.
        keep_points: whether the history holds particles.
        log_densities: at the first particles; where the checkpoint's are others, the code of the target is another.
    """
    saved = store.latest()
    if saved is None:
        return loop
    _compare_versions(saved.notes.get("versions"))
    _compare_log_densities(saved.notes.get("log densities"), _looked_at(log_densities))
    line = Record(loop.step, loop.info, loop.state.points if keep_points else None)
    leaves, structure = jax.tree_util.tree_flatten((loop, line))
    number = len(jax.tree_util.tree_leaves(loop))
    _check_shapes(saved, leaves, number)
    states = [_like(array, leaf) for array, leaf in zip(saved.arrays[:number], leaves[:number], strict=True)]
    again, lines = jax.tree_util.tree_unflatten(structure, [*states, *saved.arrays[number:]])
    recorder.every = saved.notes["stride"]
    recorder.add(lines)
    return again


def _check_shapes(saved: Saved, leaves: list[Any], number: int) -> None:
    """The settings agree, so this fails only where a library lays out its state in another way than it did."""
    lines = len(saved.arrays[number]) if len(saved.arrays) == len(leaves) else 0
    for place, (array, leaf) in enumerate(zip(saved.arrays, leaves, strict=False)):
        expected = as_numpy(leaf)
        shape = expected.shape if place < number else (lines, *expected.shape)
        if (array.shape, array.dtype) != (shape, expected.dtype):
            lines = 0
    if not lines or not isinstance(saved.notes.get("stride"), int) or saved.notes["stride"] < 1:
        raise ValueError(
            f"`checkpoint` at step {saved.step} was laid out by other versions of the libraries than these. Run with "
            f"those it was made with, {saved.notes.get('versions')}, or choose another directory."
        )


def _like(array: np.ndarray, leaf: Any) -> jax.Array:
    if is_key(leaf):
        return jr.wrap_key_data(jnp.asarray(array), impl=jr.key_impl(leaf))
    return jnp.asarray(array)


def _looked_at(log_densities: Array) -> list[float]:
    return [float(value) for value in np.asarray(log_densities[:_LOOKED_AT])]


def _compare_log_densities(before: Any, now: list[float]) -> None:
    # Another machine or version moves the last digits; another model moves the first ones.
    if not isinstance(before, list) or not np.allclose(before, now, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"`checkpoint` is of another run: its log densities at the first particles were {before}, here they are "
            f"{now}. Run with the target it was made from, or choose another directory."
        )


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("jax", "equinox", "optax", "numpy")}
    return {"python": platform.python_version(), **packages}


def _compare_versions(before: Any) -> None:
    if before != _versions():
        warnings.warn(
            f"the checkpoint was made with {before}, this is {_versions()}: the run goes on, but may differ in its "
            "last digits from one that was never interrupted.",
            RuntimeWarning,
            stacklevel=4,
        )
