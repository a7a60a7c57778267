"""The interface of samplers: settings, `init` and `step`."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..core._xla import Kind, reduce_together
from ..core.reprs import OneLine
from ..core.types import Batch, Key, Points, Scalar
from ..targets.target import BoundTarget


class Info(NamedTuple):
    """Diagnostics of one step."""

    velocity_norm: Scalar
    """Root mean square, over particles and coordinates, of the velocity (of the drift, for Langevin samplers)."""
    step_size: Scalar
    """Root mean square of the move over that of the velocity: the effective step size."""
    stein_ratio: Scalar
    """See `steinkern.stein_ratio`: 1 in expectation at exact draws, larger where the particles are too wide."""
    at_rest: Bool[Array, ""] | None = None
    """Whether the particles are at rest, so that a run has converged; `None` for samplers without such a measure."""


class Traits(NamedTuple):
    """What a sampler does; the checks of a run depend on it."""

    deterministic: bool = True
    """Whether the velocity can vanish, so that a run can converge."""
    interacting: bool = True
    """Whether the particles repel one another, so that their spread can be compared with the target's."""
    differentiates: bool = True
    """Whether the sampler needs the gradient of the target."""
    samples_target: bool = True
    """Whether the particles approximate the target, so that they can be checked against it."""


class AbstractSampler(OneLine):
    """Moves particles towards a target. One step is a pure function of (key, state, target, batch).

    A state has the particles as `points`, and the shared parameters as `shared` where the sampler trains them.
    """

    @abc.abstractmethod
    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> Any:
        """The state before the first step; raises `ValueError` where the sampler does not fit the particles."""

    @abc.abstractmethod
    def step(self, key: Key, state: Any, target: BoundTarget, batch: Batch = None) -> tuple[Any, Info]:
        """The next state, and the diagnostics of the step."""

    @property
    def traits(self) -> Traits:
        """What the sampler does; by default it is deterministic, interacts, differentiates and samples the target."""
        return Traits()

    def damped(self, factor: float) -> "AbstractSampler | None":
        """A copy with `factor` times the damping of its metrics; `None` for samplers without damping."""
        return None


def target_at(state: Any, target: BoundTarget) -> BoundTarget:
    """The target at the shared parameters that the sampler of `state` trains; `target` itself where it trains none."""
    shared = getattr(state, "shared", None)
    return target if shared is None else target.sharing(eqx.combine(shared, target.shared))


def root_mean_square(values: Array) -> Scalar:
    """√ mean(values²)."""
    return jnp.sqrt(jnp.mean(values**2))


def make_info(points: Points, velocity: Points, moved: Points, scores: Points | None) -> Info:
    """The `Info` of a step from `points` to `moved`; without scores there is no Stein ratio."""
    n, d = points.shape
    terms = [velocity**2, (moved - points) ** 2]
    if scores is not None:
        terms.append((points - jnp.mean(points, axis=0, keepdims=True)) * scores)
    kinds: list[Kind] = ["sum"] * len(terms)
    sums = reduce_together(kinds, terms)
    norm, length = (jnp.sqrt(total / (n * d)) for total in sums[:2])
    size = length / jnp.where(norm > 0, norm, 1)
    ratio = -sums[2] / ((n - 1) * d) if scores is not None and n > 1 else jnp.full((), jnp.nan, points.dtype)
    return Info(norm, size, ratio)
