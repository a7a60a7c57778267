"""A run on disk: what it is, what its checkpoints hold, and how it goes on from one."""

import platform
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ._types import PyTree, warn_caller
from .checkpoint import Saved, Store
from .description import as_numpy, described, fingerprint, is_key
from .history import Record
from .run import Run

_LOOKED_AT = 8  # particles whose log densities stand for the code of the target


def settings_of(run: Run, given: PyTree) -> dict[str, Any]:
    """What a run is: equal settings, the same run.

    A function's code cannot be compared between processes, so a log density is known here by its name and by what it
    closes over; `restore` compares its values.

    Args:
        run: before its first step.
        given: what it starts from: particles, or the state of an earlier run.
    """
    points = run.loop.state.points
    shapes = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(run.data)]
    return {
        "number of particles": points.shape[0],
        "number of coordinates": points.shape[1],
        "dtype": points.dtype.name,
        **run.settings,
        "sampler": described(run.sampler),
        "target": described(run.target),
        "tempering": described(run.tempering),
        "data shapes": shapes,
        "data": fingerprint(run.data),
        "first particles": fingerprint(given),
        "key": [str(jr.key_impl(run.key)), np.asarray(jr.key_data(run.key)).tolist()],
    }


def save(store: Store, run: Run, log_densities: Array) -> None:
    """Put the run on disk as it stands; `log_densities` are those at the first particles."""
    leaves = [as_numpy(leaf) for leaf in jax.tree_util.tree_leaves((run.loop, run.trouble, run.recorder.lines()))]
    notes = {"versions": _versions(), "stride": run.recorder.every, "log densities": _looked_at(log_densities)}
    store.save(int(run.loop.step), leaves, notes)


def restore(store: Store, run: Run, log_densities: Array) -> None:
    """Bring a run that has not begun to where the newest whole checkpoint stands, if there is one.

    Args:
        store: where the checkpoints are.
        run: before its first step.
        log_densities: at the first particles; where the checkpoint's are others, the code of the target is another.
    """
    saved = store.latest()
    if saved is None:
        return
    _compare_versions(saved.notes.get("versions"))
    _compare_log_densities(saved.notes.get("log densities"), _looked_at(log_densities))
    loop = run.loop
    line = Record(loop.step, loop.info, loop.state.points if run.record_particles else None)
    leaves, structure = jax.tree_util.tree_flatten((loop, run.trouble, line))
    number = len(jax.tree_util.tree_leaves(loop))
    _check_shapes(saved, leaves, number + len(run.trouble))
    states = [_like(array, leaf) for array, leaf in zip(saved.arrays[:number], leaves[:number], strict=True)]
    run.loop, run.trouble, lines = jax.tree_util.tree_unflatten(structure, [*states, *saved.arrays[number:]])
    run.sound = run.loop
    run.recorder.every = saved.notes["stride"]
    run.recorder.add(lines)


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
        warn_caller(
            RuntimeWarning(
                f"the checkpoint was made with {before}, this is {_versions()}: the run goes on, but may differ in its "
                "last digits from one that was never interrupted."
            )
        )
