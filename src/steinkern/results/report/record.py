"""A run as its page tells it: plain arrays, words and JSON, whether it comes from memory or from disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled
from ...core.types import Batch, PyTree
from ...kernels.diagnostics import ksd2
from ...kernels.scalar import IMQ
from ...targets.target import AbstractTarget

MOST_FRAMES = 60
"""Iterations at which the particles are drawn."""
_MOST_MEASURED = 20  # iterations at which the discrepancy is computed
_MOST_PAIRED = 500  # particles whose pairs it is computed from

UNCONSTRAINED = "unconstrained "
"""Before the name of a site whose own coordinates are not known."""
RECORD_PARTICLES = "Give `record_particles=True` to `fit` (and `record_every=k` for every k-th step) to have them kept."


@dataclass(frozen=True)
class Trace:
    """A number along the run, and what there is to say of it."""

    step: np.ndarray
    value: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Frames:
    """The particles at some iterations: named arrays with axes (iteration, particle, …)."""

    step: np.ndarray
    sites: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Record:
    """Everything that a page of a run shows."""

    title: str
    status: str
    message: str
    num_steps: int
    num_particles: int
    settings: Mapping[str, Any]
    """What was run, as JSON: `sampler`, `target` and the options of `fit`."""
    versions: Mapping[str, str]
    sites: Mapping[str, np.ndarray]
    """The particles by name, and whatever else the target derives from them; particle axis first."""
    drawn: Mapping[str, np.ndarray]
    """Those that are particles."""
    frames: Frames | None
    traces: Mapping[str, Trace]
    """`velocity norm`, `KSD`, `Stein ratio`, `step size`."""
    advice: tuple[str, ...] = ()
    check: str = ""
    """What the end of the run says of the particles as draws of the target."""
    shared: str = ""
    """What the particles have in common, in words."""
    observed: Mapping[str, Any] = field(default_factory=dict)
    predictive: Mapping[str, Any] = field(default_factory=dict)
    coordinates_note: str = ""
    flow_note: str = ""
    """What to say of the frames, or of why there are none."""
    chains: bool = False
    """Whether what is recorded are Markov chains, by which the particles were placed in the end."""

    def own_name(self, name: str) -> str:
        """What is asked for by a site's name, as it is called here: perhaps its unconstrained coordinates alone."""
        site = name.partition("[")[0]
        return name if site in self.drawn or UNCONSTRAINED + site not in self.drawn else UNCONSTRAINED + name


def chosen_lines(number: int, most: int = MOST_FRAMES) -> np.ndarray:
    """The indices of at most so many of the lines of a history, evenly spaced, the last one included."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int)) if number else np.zeros(0, int)


def by_name(particles: PyTree) -> dict[str, np.ndarray]:
    """The leaves of particles by their paths, as the target's own table of sites has them."""
    paths, _ = jax.tree_util.tree_flatten_with_path(particles)
    named = {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in paths}
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def shared_in_words(shared: PyTree) -> str:
    """How many numbers the particles share; nothing where they share none."""
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(shared) if eqx.is_inexact_array_like(leaf)]
    size = sum(int(np.size(leaf)) for leaf in leaves)
    return f"{size:,} numbers in {len(leaves)} arrays, point estimates that all particles share" if leaves else ""


def discrepancy(
    target: AbstractTarget, points: Float[Array, "k n d"], step: np.ndarray, data: Batch, lacks_particles: str
) -> Trace:
    """The kernel Stein discrepancy at some iterations, in unconstrained coordinates.

    The kernel is the IMQ whose bandwidth fits the last particles: one ruler for the whole run.

    Args:
        target: bound to the particles' space.
        points: the particles at those iterations.
        step: the iterations.
        data: those of the fit.
        lacks_particles: what to say where only the last particles are known.
    """
    lines = chosen_lines(len(step), _MOST_MEASURED)
    some = points[jnp.asarray(lines)][:, :_MOST_PAIRED]
    squared = np.asarray(_squared(target, some, data), np.float64)
    said = f"IMQ kernel with the bandwidth of the last particles; {squared[-1].clip(0) ** 0.5:.3g} at the end."
    if points.shape[1] > _MOST_PAIRED:
        said += f" From the first {_MOST_PAIRED} particles."
    return Trace(step[lines], np.sqrt(np.maximum(squared, 0)), f"{said} {lacks_particles}".strip())


@compiled
def _squared(target: AbstractTarget, points: Float[Array, "k n d"], data: Batch) -> Float[Array, " k"]:
    kernel = IMQ().adapt(points[-1])
    return jax.lax.map(lambda own: ksd2(own, target.scores(own, data), kernel), points)
