"""A run on disk: what it is, what its checkpoints hold, and how it goes on from one."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ._types import PyTree, warn_caller
from .checkpoint import OtherRunError, Saved, Store, check_kinds, difference
from .description import as_numpy, described, fingerprint, is_key, without_code
from .history import Record
from .hosts import on_host, placed_like, same_everywhere, speaks
from .run import Run

_LOOKED_AT = 8  # particles whose log densities stand for the target
_SLACK = 100  # units in the last place, of log densities that the same program computed
_ELSEWHERE = 1e-3  # another machine or version moves the last digits; another model moves the first ones
_SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")  # with others, other numbers


class Keeper:
    """The checkpoints of a run that has not begun.

    What a run is, its settings, must agree: equal settings, the same run. Functions are known there by name and by what
    they close over; their code is compared where it can be.

    Args:
        directory: of the checkpoints.
        run: before its first step.
        given: what it starts from: particles, or the state of an earlier run.
        log_densities: at the first particles; where a checkpoint's are others, the target is another.
        several: whether other processes run it too. Process 0 writes for all; all read.
    """

    def __init__(
        self, directory: str | os.PathLike[str], run: Run, given: PyTree, log_densities: Array, several: bool = False
    ):
        self.run, self._several = run, several
        self._code = {name: described(getattr(run, name)) for name in ("sampler", "target", "tempering")}
        self._log_densities = [float(value) for value in on_host(log_densities)[:_LOOKED_AT]]
        self._precision = float(jnp.finfo(log_densities.dtype).eps)
        points = run.loop.state.points
        options = options_of(run)
        settings = {
            "number of particles": points.shape[0],
            "number of coordinates": points.shape[1],
            "dtype": points.dtype.name,
            **{name: getattr(jax.config, name) for name in _SWITCHES},
            **run.settings,
            **without_code(self._code),
            "data shapes": options["data shapes"],
            "data": fingerprint(run.data),
            "first particles": fingerprint(given),
            "key": options["key"],
        }
        self._store = Store(directory, settings)

    def save(self) -> None:
        """Put the run on disk as it stands."""
        run = self.run
        leaves = jax.tree_util.tree_leaves((run.loop, run.trouble, run.recorder.lines()))
        notes = {
            "versions": _versions(),
            "stride": run.recorder.every,
            "log densities": self._log_densities,
            "code": self._code,
            # The arrays have no names: whoever reads them without the sampler finds the particles by this.
            "points": next(place for place, leaf in enumerate(leaves) if leaf is run.loop.state.points),
        }
        arrays = [as_numpy(leaf) for leaf in leaves]  # where they lie on several processes, these gather them together
        if speaks(self._several):
            self._store.save(int(run.loop.step), arrays, notes)

    def restore(self) -> None:
        """Bring the run to where the newest whole checkpoint stands, if there is one."""
        run, loop = self.run, self.run.loop
        line = Record(loop.step, loop.info, loop.state.points if run.record_particles else None)
        leaves, structure = jax.tree_util.tree_flatten((loop, run.trouble, line))
        check_kinds(as_numpy(leaf) for leaf in leaves)  # now, and not after the steps to the first checkpoint
        saved = self._store.latest()
        if not same_everywhere(self._several, f"{-1 if saved is None else saved.step:020d}"):
            raise ValueError(
                "`checkpoint` must be a directory that all processes see: they found checkpoints of different steps in "
                f"{self._store.directory}. Put it on a file system that the machines share."
            )
        if saved is None:
            return
        number = len(jax.tree_util.tree_leaves(loop))
        _check_layout(saved, run, leaves, number + len(run.trouble))
        self._compare(saved.notes)
        states = [_like(array, leaf) for array, leaf in zip(saved.arrays[:number], leaves[:number], strict=True)]
        run.loop, run.trouble, lines = jax.tree_util.tree_unflatten(structure, [*states, *saved.arrays[number:]])
        run.sound = run.loop
        run.recorder.every = saved.notes["stride"]
        run.recorder.add(lines)

    def _compare(self, notes: dict[str, Any]) -> None:
        """Raise where functions are others than they were; warn where versions are."""
        before, now = notes["versions"], _versions()
        if before.get("python") == now.get("python"):
            _compare_code(notes["code"], self._code)
        slack = _SLACK * self._precision if before == now else _ELSEWHERE
        _compare_log_densities(notes["log densities"], self._log_densities, slack)
        if before != now:
            warn_caller(
                RuntimeWarning(
                    f"the checkpoint was made with {before}, this is {now}: the run goes on, but may differ in its "
                    "last digits from one that was never interrupted."
                )
            )


def options_of(run: Run) -> dict[str, Any]:
    """The options of `fit` for a run, as JSON; what is cheap to say of its data and key included."""
    shapes = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(run.data)]
    return {
        **run.settings,
        "tempering": without_code(described(run.tempering)),
        "data shapes": shapes,
        "key": [str(jr.key_impl(run.key)), np.asarray(jr.key_data(run.key)).tolist()],
    }


def _check_layout(saved: Saved, run: Run, leaves: list[Any], number: int) -> None:
    """The settings agree, so this fails only where a library lays out its state in another way than it did."""
    ends = saved.arrays[number].shape if len(saved.arrays) == len(leaves) else ()
    lines = ends[0] if ends else 0
    for place, (array, leaf) in enumerate(zip(saved.arrays, leaves, strict=False)):
        expected = as_numpy(leaf)
        shape = expected.shape if place < number else (lines, *expected.shape)
        if (array.shape, array.dtype) != (shape, expected.dtype):
            lines = 0
    notes = saved.notes
    strides = [run.record_every * 2**doublings for doublings in range(32)]  # as the history is thinned
    kinds = {"versions": dict, "code": dict, "log densities": list, "stride": int}
    known = all(type(notes.get(name)) is kind for name, kind in kinds.items()) and notes["stride"] in strides
    if not lines or not known:
        raise ValueError(
            f"`checkpoint` at step {saved.step} was laid out by other versions of the libraries than these. Run with "
            f"those it was made with, {notes.get('versions')}, or choose another directory."
        )


def _like(array: np.ndarray, leaf: Any) -> jax.Array:
    if is_key(leaf):
        return jr.wrap_key_data(jnp.asarray(array), impl=jr.key_impl(leaf))
    return placed_like(array, leaf)


def _compare_code(before: dict[str, Any], now: dict[str, Any]) -> None:
    found = difference(before, json.loads(json.dumps(now)))
    if found is not None:
        raise OtherRunError(
            f"`checkpoint` is of another run: its {found[0]} is {found[1]}, here it is {found[2]}: a function of the "
            "same name does something else, or reads another number. Run with the one it was made from, or choose "
            "another directory.",
            "a function of the same name does something else, or reads another number",
        )


def _compare_log_densities(before: list[Any], now: list[float], slack: float) -> None:
    numbers = [value for value in before if isinstance(value, float)]
    if len(numbers) != len(before) or len(before) != len(now) or not np.allclose(numbers, now, rtol=slack, atol=slack):
        raise OtherRunError(
            f"`checkpoint` is of another run: its log densities at the first particles were {before}, here they are "
            f"{now}. Run with the target it was made from, or choose another directory.",
            "its log densities at the first particles differ",
        )


def _versions() -> dict[str, str]:
    packages = {name: _version(name) for name in ("steinkern", "jax", "jaxlib", "equinox", "optax", "numpy")}
    device = {"backend": jax.default_backend(), "device": jax.devices()[0].device_kind}
    return {"python": platform.python_version(), **packages, **device}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # from a source tree that is not installed
        return "unknown"
