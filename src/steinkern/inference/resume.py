"""Checkpoints of a `fit`: how a run is identified, saved and resumed."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._moved import RENAMED
from ..core.checkpoint import CheckpointDirectory, CheckpointError, OtherRunError, busy, differences
from ..core.checkpoint_file import CheckpointContents, check_kinds
from ..core.description import as_numpy, describe, fingerprint, is_key
from ..core.files import DirectoryLock, versions
from ..core.multihost import any_process, is_writer, on_host, placed_like, same_everywhere
from ..core.program_digest import ProgramHasher
from ..core.types import PyTree, warn_caller
from .distributed import several_processes, within
from .history import Record
from .run import Run

_LOOKED_AT = 8  # particles whose log densities and scores are compared
_SLACK = 100  # tolerance, in units in the last place, for log densities of the same program
_ELSEWHERE = 1e-3  # tolerance between machines and versions, which change the last digits; a model changes the first
_SCORES = 10  # factor on the tolerance for scores, which lose more digits to cancellation
_SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")  # they change the numbers
_PARTS = {
    "target": ("target", "log density or data preparation"),
    "tempering": ("tempering", "tempering"),
    "first state": ("sampler", "sampler, at its start,"),
    "step": ("sampler", "sampler"),
}
"""For every part of a run's digests, the most specific first: the key of its description, and its name in errors."""
_DESCRIBED = ("target", "tempering", "sampler")
_LIBRARIES = ("numpyro", "pymc", "pytensor", "flax", "haiku", "blackjax", "lineax", "diffrax", "optimistix", "distrax",
              "tensorflow_probability", "jaxopt", "scipy")  # fmt: skip


class RunCheckpointer:
    """Saves a run to checkpoints, and restores it from them before its first step.

    A run is identified by its settings (numbers, switches, key, data and particles) and by digests of its traced
    programs (`Run.digests`). The digests are compared where all versions, the kind of device and the number of devices
    agree. Elsewhere, and where a program calls code that JAX does not trace, the log densities and scores at the first
    particles are compared, with a warning.

    Args:
        directory: the directory of the checkpoints.
        run: the run before its first step.
        given: the start of the run: particles, or the state of an earlier run.
        log_densities: at the first particles.
        scores: at the first particles; zeros where the sampler needs none.
        mesh: the devices over which the particles are spread, if any. Of several processes, process 0 writes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        run: Run,
        given: PyTree,
        log_densities: Array,
        scores: Array,
        mesh: Any = None,
    ):
        self.run, self._several = run, several_processes(mesh)
        self._values = {
            "log densities": on_host(log_densities)[:_LOOKED_AT].astype(float).tolist(),
            "scores": on_host(scores)[:_LOOKED_AT].astype(float).tolist(),
        }
        self._precision = float(jnp.finfo(log_densities.dtype).eps)
        self._versions = {
            **versions(),
            "backend": jax.default_backend(),
            "device": jax.devices()[0].device_kind,
            "devices": 1 if mesh is None else mesh.size,
        }
        programs = ProgramHasher()
        with within(mesh):  # as the steps are traced
            self._digests = run.digests(programs)
        self._unknown = " and ".join(sorted(programs.unknown))
        points = run.loop.state.points
        options = options_of(run)
        settings = {
            "number of particles": points.shape[0],
            "number of coordinates": points.shape[1],
            "dtype": points.dtype.name,
            **{name: getattr(jax.config, name) for name in _SWITCHES},
            **run.settings,
            "data shapes": options["data shapes"],
            "data": fingerprint(run.data),
            "first particles": fingerprint(given),
            "key": options["key"],
        }
        description = {name: describe(getattr(run, name)) for name in _DESCRIBED}
        self._store = CheckpointDirectory(directory, settings, description)

    @property
    def lock(self) -> DirectoryLock:
        """The lock of the directory against other runs, which process 0 holds from `restore` until it is released."""
        return self._store.lock

    def save(self) -> None:
        """Write a checkpoint of the run's current state; `CheckpointError` in all processes where that fails."""
        run = self.run
        leaves = jax.tree_util.tree_leaves((run.loop, run.faults, run.recorder.lines()))
        notes = {
            "versions": self._versions,
            "libraries": _libraries(),
            "stride": run.recorder.every,
            "computes": self._digests,
            **self._values,
            # The arrays have no names; this is the index of the particles for readers without the sampler.
            "points": next(place for place, leaf in enumerate(leaves) if leaf is run.loop.state.points),
        }
        arrays = [as_numpy(leaf) for leaf in leaves]  # gathers shares of other processes, so all must call it
        failure = None
        if is_writer(self._several):
            try:
                self._store.save(int(run.loop.step), arrays, notes)
            except CheckpointError as error:
                failure = error
        (failed,) = any_process(self._several, failure is not None)
        if failed:
            raise failure or CheckpointError(
                f"process 0 could not write the checkpoint at step {int(run.loop.step)}; its own error says why."
            )

    def restore(self, num_steps: int) -> None:
        """Lock the directory, and restore the run from the newest intact checkpoint, if there is one.

        Args:
            num_steps: the number of steps of the run, which the checkpoint must not exceed.
        """
        (refused,) = any_process(self._several, is_writer(self._several) and not self.lock.acquire())
        if refused:
            raise OSError(busy(self._store.directory))
        try:
            self._restore()
            if self.run.done > num_steps:
                raise ValueError(
                    f"`num_steps` must be at least {self.run.done}, where the checkpoint in `checkpoint` "
                    f"{self._store.directory} stands, got {num_steps}. Raise it, or choose another directory."
                )
        except BaseException:
            self.lock.release()
            raise

    def _restore(self) -> None:
        run, loop = self.run, self.run.loop
        line = Record(loop.step, loop.info, loop.state.points if run.record_particles else None)
        leaves, structure = jax.tree_util.tree_flatten((loop, run.faults, line))
        check_kinds(as_numpy(leaf) for leaf in leaves)  # before the first step instead of at the first checkpoint
        saved = self._store.latest()
        if not same_everywhere(self._several, f"{-1 if saved is None else saved.step:020d}"):
            raise ValueError(
                "`checkpoint` must be a directory that all processes see: they found checkpoints of different steps in "
                f"{self._store.directory}. Put it on a file system that the machines share."
            )
        if saved is None:
            return
        number = len(jax.tree_util.tree_leaves(loop))
        _check_notes(saved, run)
        self._compare_programs(saved)
        _check_layout(saved, leaves, number + len(run.faults))
        self._compare_values(saved)
        states = [_like(array, leaf) for array, leaf in zip(saved.arrays[:number], leaves[:number], strict=True)]
        run.loop, run.faults, lines = jax.tree_util.tree_unflatten(structure, [*states, *saved.arrays[number:]])
        run.last_good = run.loop
        run.recorder.every = saved.notes["stride"]
        run.recorder.add(lines)

    def _compare_programs(self, saved: CheckpointContents) -> None:
        """Raise where versions agree and the digests of the programs differ."""
        part = self._other_part(saved)
        libraries, now = saved.notes.get("libraries", {}), _libraries()
        same_libraries = all(libraries.get(name, now[name]) == now[name] for name in now)
        if part is None or not self._same_versions(saved) or not same_libraries:
            return
        place, words = _PARTS[part]
        found = next(self._other_descriptions(saved, place), None)
        if found is not None:
            raise self._refusal(*found)
        raise OtherRunError(
            f"`checkpoint` {self._store.directory} is of another run: its {words} computes something else than it did. "
            "Run with what it was made from, or choose another directory.",
            f"its {words} computes something else",
        )

    def _refusal(self, place: str, before: Any, now: Any) -> OtherRunError:
        return OtherRunError(
            f"`checkpoint` {self._store.directory} is of another run: its {place} is {before}, here it is {now}. Run "
            "with what it was made from, or choose another directory.",
            f"{place} differs",
        )

    def _compare_values(self, saved: CheckpointContents) -> None:
        """Raise where the target's values differ; warn where versions differ or programs could not be compared."""
        same_versions, part = self._same_versions(saved), self._other_part(saved)
        certain = "computes" in saved.notes and part is None and not self._unknown
        # A tight tolerance where only values are compared and they should agree to the last digits.
        slack = _SLACK * self._precision if same_versions and part is None and not certain else _ELSEWHERE
        _compare_numbers("log densities", saved.notes["log densities"], self._values["log densities"], slack, slack)
        if not certain:
            largest = float(np.max(np.abs(self._values["scores"]), initial=0.0))
            before = saved.notes.get("scores", self._values["scores"])
            _compare_numbers("scores", before, self._values["scores"], 0.0, _SCORES * slack * largest)
            for found in self._other_descriptions(saved, *_DESCRIBED):
                if all(isinstance(value, int | float) for value in found[1:]):  # a number among the user's settings
                    raise self._refusal(*found)
        said = []
        if not same_versions:
            said.append(
                f"the checkpoint was made with {saved.notes['versions']}, this is {self._versions}: the run goes on, "
                "but may differ in its last digits from one that was never interrupted."
            )
        if not certain:
            said.append(self._doubt(saved, part))
        if said:
            warn_caller(RuntimeWarning(" ".join(said)))

    def _doubt(self, saved: CheckpointContents, part: str | None) -> str:
        if "computes" not in saved.notes:
            why = "the checkpoint was written before checkpoints recorded what a run computes"
        elif part is not None:
            why = f"its {_PARTS[part][1]} is another program, which other versions or devices may explain"
        else:
            why = f"it calls {self._unknown}, which may do something else now"
        found = next(self._other_descriptions(saved, *_DESCRIBED), None)
        differs = "" if found is None else f" Its {found[0]} was {found[1]}, here it is {found[2]}."
        return (
            f"Cannot tell whether this run computes what it did: {why}. The log densities "
            f"{'and scores ' if 'scores' in saved.notes else ''}at the first particles agree.{differs}"
        )

    def _same_versions(self, saved: CheckpointContents) -> bool:
        return bool({"devices": self._versions["devices"], **saved.notes["versions"]} == self._versions)

    def _other_part(self, saved: CheckpointContents) -> str | None:
        """The first part of the run whose program differs; `None` also for a checkpoint without digests."""
        before = saved.notes.get("computes", self._digests)
        return next((part for part in _PARTS if before.get(part) != self._digests.get(part)), None)

    def _other_descriptions(self, saved: CheckpointContents, *places: str) -> Iterator[tuple[str, Any, Any]]:
        """The differences between the checkpoint's description of the run and the current one."""
        before, now = ({name: all_.get(name) for name in places} for all_ in (saved.settings, self._store.description))
        return (found for found in differences(before, now) if not _is_same(*found[1:]))


def _is_same(before: Any, now: Any) -> bool:
    """Whether two different entries of descriptions mean the same.

    An integer and a float of the same value do: a schedule of optax turns its number of steps into a float when it is
    first called. So do a class of this package and its path in an earlier version.
    """
    if isinstance(before, str) and isinstance(now, str):
        (package, _, name), (package_now, _, name_now) = before.rpartition("."), now.rpartition(".")
        ours = all(path.partition(".")[0] == "steinkern" for path in (package, package_now))
        return ours and name_now == RENAMED.get(name, name)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, now))
    return bool(numbers and before == now)


def options_of(run: Run) -> dict[str, Any]:
    """The options of `fit` for a run, the shapes of its data and its key, as JSON."""
    shapes = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(run.data)]
    return {
        **run.settings,
        "tempering": describe(run.tempering),
        "data shapes": shapes,
        "key": [str(jr.key_impl(run.key)), np.asarray(jr.key_data(run.key)).tolist()],
    }


def _check_notes(saved: CheckpointContents, run: Run) -> None:
    """Raise where the notes are not of the kind that `save` writes, in this version or an earlier one."""
    notes = saved.notes
    strides = [run.record_every * 2**doublings for doublings in range(32)]  # thinning doubles the stride
    kinds = {"versions": dict, "log densities": list, "stride": int}
    later = {"libraries": dict, "computes": dict, "scores": list}
    known = all(type(notes.get(name)) is kind for name, kind in kinds.items()) and notes["stride"] in strides
    if not known or any(type(notes[name]) is not kind for name, kind in later.items() if name in notes):
        raise _other_layout(saved)


def _check_layout(saved: CheckpointContents, leaves: list[Any], number: int) -> None:
    """Raise where the arrays do not have this run's shapes; those after the first `number` are lines of the history."""
    ends = saved.arrays[number].shape if len(saved.arrays) == len(leaves) else ()
    lines = ends[0] if ends else 0
    for place, (array, leaf) in enumerate(zip(saved.arrays, leaves, strict=False)):
        expected = as_numpy(leaf)
        shape = expected.shape if place < number else (lines, *expected.shape)
        if (array.shape, array.dtype) != (shape, expected.dtype):
            lines = 0
    if not lines:
        raise _other_layout(saved)


def _other_layout(saved: CheckpointContents) -> ValueError:
    return ValueError(
        f"`checkpoint` at step {saved.step} was laid out by another sampler, or by other versions of the libraries. "
        f"Run with those it was made with, {saved.notes.get('versions')}, or choose another directory."
    )


def _like(array: np.ndarray, leaf: Any) -> jax.Array:
    if is_key(leaf):
        return jr.wrap_key_data(jnp.asarray(array), impl=jr.key_impl(leaf))
    return placed_like(array, leaf)


def _compare_numbers(name: str, before: Any, now: Any, relative: float, absolute: float) -> None:
    try:
        numbers = np.asarray(before if _all_floats(before) else None, float)
    except ValueError:  # a ragged list
        numbers = np.zeros(0)
    if numbers.shape != np.shape(now) or not np.allclose(numbers, now, rtol=relative, atol=absolute):
        raise OtherRunError(
            f"`checkpoint` is of another run: its {name} at the first particles were {before}, here they are {now}. "
            "Run with the target it was made from, or choose another directory.",
            f"its {name} at the first particles differ",
        )


def _all_floats(value: Any) -> bool:
    return all(map(_all_floats, value)) if isinstance(value, list) else isinstance(value, float)


def _libraries() -> dict[str, str]:
    """The versions of imported libraries whose code may be part of a log density or a sampler."""
    return {name: str(getattr(sys.modules[name], "__version__", "")) for name in _LIBRARIES if name in sys.modules}
