"""What the page of a run shows: its settings, its particles by name, and its traces."""

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ...core.messages import quantity
from ...core.programs import compiled
from ...core.types import Batch, PyTree
from ...kernels.diagnostics import ksd2
from ...kernels.scalar import IMQ
from ...targets.target import BoundTarget

if TYPE_CHECKING:
    from ..result import Result

MOST_FRAMES = 60
"""The most iterations at which the particles are drawn."""
_MOST_MEASURED = 20  # the most iterations at which the discrepancy is computed
_MOST_PAIRED = 500  # the most particles from which the discrepancy is computed
_RECORD_PARTICLES = "Give `record_particles=True` to `fit` (`record_every=k` for every k-th step) to have them kept."
_OPTIONS = ("batch_size", "record_every", "record_particles", "tolerance", "max_move", "tempering", "steps before")


class Trace(NamedTuple):
    """A diagnostic along the run, and a note for its caption."""

    step: np.ndarray
    value: np.ndarray
    note: str = ""


def target_name(target: BoundTarget) -> str:
    """The name of the user's function or model; the kind of target where it has none."""
    call = getattr(target.space, "call", None)
    named = ((target.target, "function"), (target.target, "log_likelihood"), (call, "model"))
    function: Any = next((getattr(owner, name) for owner, name in named if hasattr(owner, name)), None)
    name = getattr(inspect.unwrap(getattr(function, "func", function)), "__name__", "<lambda>")
    return type(target.target).__name__ if name == "<lambda>" else str(name)


def facts(result: "Result") -> list[tuple[str, str]]:
    """The labels and texts of the page's list of settings."""
    settings = result.described_settings()
    shared = [np.size(leaf) for leaf in jax.tree.leaves(result.shared)]
    labeled = {
        "Command": settings.get("command"),
        "Target": settings.get("target"),
        "Parameters": ", ".join(f"{name} {list(v.shape[1:])}" for name, v in by_name(result.particles).items()),
        "Shared": f"{sum(shared):,} numbers in {quantity(len(shared), 'array')}, point estimates" if shared else "",
        "Data": ", ".join(settings.get("data shapes") or ()),
        "Method": settings.get("method") or settings.get("sampler"),
        "Particles and steps": size_of(result),
        "Check": " ".join(result._ending()[1:]),
        "Key": "" if "command" in settings else " ".join(map(str, settings.get("key") or ())),
        "Options": ", ".join(f"{name} {settings[name]}" for name in _OPTIONS if settings.get(name)),
        "Versions": ", ".join(f"{name} {number}" for name, number in settings["versions"].items()),
    }
    return [(label, text) for label, text in labeled.items() if text]


def frames_note(result: "Result") -> str:
    """What the recorded particles are, or why there are none."""
    recorded = result.history.particles is not None
    if result._chains:
        known = "Before the last step these are the chains" if recorded else "The chains are too many to be kept"
        return f"{known}; the particles are support points of their draws."
    return "" if recorded else _RECORD_PARTICLES


def size_of(result: "Result") -> str:
    """The numbers of particles and steps."""
    return f"{quantity(len(result.points), 'particle')}, {quantity(result.num_steps, 'step')}"


def evenly_spaced(number: int, most: int = MOST_FRAMES) -> np.ndarray:
    """The indices of at most `most` records of a history, the last one included."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int)) if number else np.zeros(0, int)


def by_name(particles: PyTree) -> dict[str, np.ndarray]:
    """The leaves of the particles by their paths, "x" for a bare array."""
    paths, _ = jax.tree_util.tree_flatten_with_path(particles)
    named = {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in paths}
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def traces(result: "Result", data: Batch) -> dict[str, Trace]:
    """The diagnostics of the history, and the kernel Stein discrepancy."""
    history = result.history
    return {**{name: Trace(history.step, v) for name, v in history.traces().items()}, "KSD": _discrepancy(result, data)}


def _discrepancy(result: "Result", data: Batch) -> Trace:
    """The kernel Stein discrepancy in unconstrained coordinates at the recorded iterations, or why there is none.

    The kernel is the IMQ with the bandwidth of the last particles at all iterations, so that they can be compared.
    """
    nothing, history = np.zeros(0), result.history
    if result.target is None:
        return Trace(nothing, nothing, "It needs the target: give it as `steinkern.load(path, target=...)`.")
    if result.sampler is not None and not result.sampler.traits.differentiates:
        return Trace(nothing, nothing, "It needs the gradient of the target, which this sampler does without.")
    if result.settings.get("data shapes") and data is None:
        return Trace(nothing, nothing, "It needs the data: give them as `result.report(directory, data)`.")
    if history.particles is None or result.shared is not None:
        points, step = np.asarray(result.points)[None, :_MOST_PAIRED], np.array([result.num_steps])
        note = frames_note(result) or "What the particles share was another at earlier steps."
    else:
        lines = evenly_spaced(len(history.step), _MOST_MEASURED)
        step, note = history.step[lines], ""
        recorded = jax.tree.map(lambda leaf: leaf[lines, :_MOST_PAIRED], history.particles)
        points = np.asarray(_unconstrain(result.target, recorded))
    squared = np.asarray(_squared_discrepancies(result.target, jax.device_put(points), data), np.float64)
    end = f"IMQ kernel with the bandwidth of the last particles; {squared[-1].clip(0) ** 0.5:.3g} at the end."
    some = f" From the first {_MOST_PAIRED} particles." if len(result.points) > _MOST_PAIRED else ""
    return Trace(step, np.sqrt(np.maximum(squared, 0)), f"{end}{some} {note}".strip())


@compiled
def _unconstrain(target: BoundTarget, recorded: PyTree) -> Float[Array, "k n d"]:
    return jax.vmap(jax.vmap(target.space.unconstrain))(recorded)


@compiled
def _squared_discrepancies(target: BoundTarget, points: Float[Array, "k n d"], data: Batch) -> Float[Array, " k"]:
    kernel = IMQ().adapt(points[-1])
    return jax.lax.map(lambda frame: ksd2(frame, target.scores(frame, data), kernel), points)
