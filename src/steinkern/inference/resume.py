"""A run on disk: what it is, what its checkpoints hold, and how it goes on from one."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..core.checkpoint import CheckpointDirectory, CheckpointError, OtherRunError, busy, differences
from ..core.checkpoint_file import CheckpointContents, check_kinds
from ..core.description import as_numpy, described, fingerprint, is_key
from ..core.files import DirectoryLock, versions
from ..core.identity import ProgramHasher
from ..core.multihost import any_process, is_writer, on_host, placed_like, same_everywhere
from ..core.types import PyTree, warn_caller
from .distributed import several_processes, within
from .history import Record
from .run import Run

_LOOKED_AT = 8  # particles whose log densities and scores stand for the target
_SLACK = 100  # units in the last place, of log densities that the same program computed
_ELSEWHERE = 1e-3  # another machine or version moves the last digits; another model moves the first ones
_SCORES = 10  # times the slack of log densities: scores lose more digits to cancellation
_SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")  # with others, other numbers
_PARTS = {
    "target": ("target", "log density or data preparation"),
    "tempering": ("tempering", "tempering"),
    "first state": ("sampler", "sampler, at its start,"),
    "step": ("sampler", "sampler"),
}
"""For every part of a run's digests, from the most particular on: where its description is, and its name."""
_DESCRIBED = ("target", "tempering", "sampler")
_LIBRARIES = ("numpyro", "pymc", "pytensor", "flax", "haiku", "blackjax", "lineax", "diffrax", "optimistix", "distrax",
              "tensorflow_probability", "jaxopt", "scipy")  # fmt: skip


class RunCheckpointer:
    """The checkpoints of a run that has not begun.

    A run is known by its settings and by what it computes. Settings are numbers, switches, key, data and particles;
    what it computes is told by digests of its traced programs (`Run.digests`). Programs are compared where all
    versions, the kind of device and the number of devices are the same. Elsewhere, and where a program calls what
    JAX does not trace, log densities and scores at the first particles are compared, and a warning says so.

    Args:
        directory: of the checkpoints.
        run: before its first step.
        given: what it starts from: particles, or the state of an earlier run.
        log_densities: at the first particles.
        scores: the gradients there; zeros where the sampler needs none.
        mesh: over which the particles are spread, if any. Where other processes take part, process 0 writes for all.
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
        description = {name: described(getattr(run, name)) for name in _DESCRIBED}
        self._store = CheckpointDirectory(directory, settings, description)

    @property
    def lock(self) -> DirectoryLock:
        """Of the directory, against other runs: held from `restore` on, by process 0 for all, until it is released."""
        return self._store.lock

    def save(self) -> None:
        """Put the run on disk as it stands; `CheckpointError`, in all processes, where that fails."""
        run = self.run
        leaves = jax.tree_util.tree_leaves((run.loop, run.faults, run.recorder.lines()))
        notes = {
            "versions": self._versions,
            "libraries": _libraries(),
            "stride": run.recorder.every,
            "computes": self._digests,
            **self._values,
            # The arrays have no names: whoever reads them without the sampler finds the particles by this.
            "points": next(place for place, leaf in enumerate(leaves) if leaf is run.loop.state.points),
        }
        arrays = [as_numpy(leaf) for leaf in leaves]  # where they lie on several processes, these gather them together
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
        """Lock the directory, and bring the run to where the newest whole checkpoint stands, if there is one.

        Args:
            num_steps: which the run may have taken at most.
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
        """Raise where versions are the same and the run computes something else than it did."""
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
        """Raise where the target has other values; warn where versions differ, or programs could not be compared."""
        same_versions, part = self._same_versions(saved), self._other_part(saved)
        certain = "computes" in saved.notes and part is None and not self._unknown
        # Tight where values alone tell and should agree to the last digits.
        slack = _SLACK * self._precision if same_versions and part is None and not certain else _ELSEWHERE
        _compare_numbers("log densities", saved.notes["log densities"], self._values["log densities"], slack, slack)
        if not certain:
            largest = float(np.max(np.abs(self._values["scores"]), initial=0.0))
            before = saved.notes.get("scores", self._values["scores"])
            _compare_numbers("scores", before, self._values["scores"], 0.0, _SCORES * slack * largest)
            for found in self._other_descriptions(saved, *_DESCRIBED):
                if all(isinstance(value, int | float) for value in found[1:]):  # a number that a user gives
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
        """The first part of the run that was another program; `None` also where the checkpoint does not say."""
        before = saved.notes.get("computes", self._digests)
        return next((part for part in _PARTS if before.get(part) != self._digests.get(part)), None)

    def _other_descriptions(self, saved: CheckpointContents, *places: str) -> Iterator[tuple[str, Any, Any]]:
        """Where the run is made from something else, as far as its description shows that."""
        before, now = ({name: all_.get(name) for name in places} for all_ in (saved.settings, self._store.description))
        return differences(before, now)


def options_of(run: Run) -> dict[str, Any]:
    """The options of `fit` for a run, as JSON; what is cheap to say of its data and key included."""
    shapes = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(run.data)]
    return {
        **run.settings,
        "tempering": described(run.tempering),
        "data shapes": shapes,
        "key": [str(jr.key_impl(run.key)), np.asarray(jr.key_data(run.key)).tolist()],
    }


def _check_notes(saved: CheckpointContents, run: Run) -> None:
    """Raise where the notes are not such as `save` writes, in this version or an earlier one."""
    notes = saved.notes
    strides = [run.record_every * 2**doublings for doublings in range(32)]  # as the history is thinned
    kinds = {"versions": dict, "log densities": list, "stride": int}
    later = {"libraries": dict, "computes": dict, "scores": list}
    known = all(type(notes.get(name)) is kind for name, kind in kinds.items()) and notes["stride"] in strides
    if not known or any(type(notes[name]) is not kind for name, kind in later.items() if name in notes):
        raise _other_layout(saved)


def _check_layout(saved: CheckpointContents, leaves: list[Any], number: int) -> None:
    """Raise where the arrays are not those of this run, of which the first `number` are no lines of the history."""
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
    except ValueError:  # lists of different lengths
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
    """The versions of those libraries in use from which a log density or a sampler may take its equations."""
    return {name: str(getattr(sys.modules[name], "__version__", "")) for name in _LIBRARIES if name in sys.modules}
