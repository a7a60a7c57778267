"""The content of a run's page: plain arrays, texts and JSON, from a run in memory or on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled
from ...core.types import Batch, PyTree
from ...kernels.diagnostics import ksd2
from ...kernels.scalar import IMQ
from ...targets.target import AbstractTarget

MOST_FRAMES = 60
"""The most iterations at which the particles are drawn."""
_MOST_MEASURED = 20  # the most iterations at which the discrepancy is computed
_MOST_PAIRED = 500  # the most particles from which the discrepancy is computed

UNCONSTRAINED = "unconstrained "
"""The prefix of a site's name where its constraints are not known."""
RECORD_PARTICLES = "Give `record_particles=True` to `fit` (and `record_every=k` for every k-th step) to have them kept."


@dataclass(frozen=True)
class Trace:
    """A diagnostic along the run, and a note for its caption."""

    step: np.ndarray
    value: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Frames:
    """The particles at the recorded iterations: named arrays with axes (iteration, particle, …)."""

    step: np.ndarray
    sites: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Record:
    """All that the page of a run shows."""

    title: str
    status: str
    message: str
    num_steps: int
    num_particles: int
    settings: Mapping[str, Any]
    """The settings as JSON: `sampler`, `target` and the options of `fit`."""
    versions: Mapping[str, str]
    sites: Mapping[str, np.ndarray]
    """The particles by name, and the quantities that the target derives from them; particle axis first."""
    drawn: Mapping[str, np.ndarray]
    """The particles by name, without derived quantities."""
    frames: Frames | None
    traces: Mapping[str, Trace]
    """`velocity norm`, `KSD`, `Stein ratio`, `step size`."""
    advice: tuple[str, ...] = ()
    check: str = ""
    """The sentence of the verdict on the particles."""
    shared: str = ""
    """A text on the parameters that all particles share."""
    observed: Mapping[str, Any] = field(default_factory=dict)
    predictive: Mapping[str, Any] = field(default_factory=dict)
    coordinates_note: str = ""
    flow_note: str = ""
    """A note on the frames, or on why there are none."""
    chains: bool = False
    """Whether the frames hold Markov chains, from whose draws the final particles were computed."""

    def own_name(self, name: str) -> str:
        """The name of a site or coordinate in this record, which may have it in unconstrained coordinates only."""
        site = name.partition("[")[0]
        return name if site in self.drawn or UNCONSTRAINED + site not in self.drawn else UNCONSTRAINED + name


def chosen_lines(number: int, most: int = MOST_FRAMES) -> np.ndarray:
    """The indices of at most `most` records of a history, evenly spaced, the last one included."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int)) if number else np.zeros(0, int)


def by_name(particles: PyTree) -> dict[str, np.ndarray]:
    """The leaves of the particles by their paths, named as in `AbstractTarget.sites`."""
    paths, _ = jax.tree_util.tree_flatten_with_path(particles)
    named = {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in paths}
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def shared_in_words(shared: PyTree) -> str:
    """A text with the number of shared parameters; empty where there are none."""
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(shared) if eqx.is_inexact_array_like(leaf)]
    size = sum(int(np.size(leaf)) for leaf in leaves)
    return f"{size:,} numbers in {len(leaves)} arrays, point estimates that all particles share" if leaves else ""


def discrepancy(
    target: AbstractTarget, points: np.ndarray, step: np.ndarray, data: Batch, lacks_particles: str
) -> Trace:
    """The kernel Stein discrepancy at the recorded iterations, in unconstrained coordinates.

    The kernel is the IMQ with the bandwidth of the last particles at all iterations, so that they can be compared.

    Args:
        target: bound to the particles' space.
        points: the particles at those iterations, (k, n, d).
        step: the iterations.
        data: the data of the fit.
        lacks_particles: a note for runs of which only the last particles are known.
    """
    lines = chosen_lines(len(step), _MOST_MEASURED)
    chosen = np.ascontiguousarray(points[lines][:, :_MOST_PAIRED])
    squared = np.asarray(_squared_discrepancies(target, jax.device_put(chosen), data), np.float64)
    said = f"IMQ kernel with the bandwidth of the last particles; {squared[-1].clip(0) ** 0.5:.3g} at the end."
    if points.shape[1] > _MOST_PAIRED:
        said += f" From the first {_MOST_PAIRED} particles."
    return Trace(step[lines], np.sqrt(np.maximum(squared, 0)), f"{said} {lacks_particles}".strip())


@compiled
def _squared_discrepancies(target: AbstractTarget, points: Float[Array, "k n d"], data: Batch) -> Float[Array, " k"]:
    kernel = IMQ().adapt(points[-1])
    return jax.lax.map(lambda own: ksd2(own, target.scores(own, data), kernel), points)
