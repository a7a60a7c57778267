"""What a fit gives back."""

import enum
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._types import Batch, Points, PyTree
from .particles import Layout
from .sampler import AbstractSampler
from .target import AbstractTarget


class Status(enum.Enum):
    """How a fit ended."""

    CONVERGED = "converged"
    FINISHED = "finished"
    STOPPED = "stopped"
    """By Ctrl-C."""
    DIVERGED = "diverged"


@dataclass(frozen=True)
class History:
    """What was recorded along the way, every `record_every` steps: arrays with one entry a record.

    Beyond 65,536 records every second one is let go, again and again; `step` says which are left, and the last step is
    always among them.
    """

    step: np.ndarray
    """The number of steps taken when the record was made."""
    velocity_norm: np.ndarray
    step_size: np.ndarray
    stein_ratio: np.ndarray
    particles: PyTree | None
    """The particles after that step, with axes (record, particle, …); `None` unless `record_particles` was set."""


@dataclass(frozen=True)
class Faults:
    """What went wrong along the way and was dealt with."""

    frozen: int = 0
    """How often a particle at fault was moved back, so that the others could go on."""
    stuck: tuple[int, ...] = ()
    """The particles that had to be moved back more than five steps in a row."""
    damped: int = 0
    """How many steps were taken with a larger damping, because a metric could not be factorised."""
    largest_damping: float = 1.0
    """The largest factor on the damping of those steps."""
    shortened: int = 0
    """How many moves were longer than `longest_move` allows and made shorter."""

    def sentences(self) -> list[str]:
        """What is to be said of it."""
        said = []
        if self.frozen:
            said.append(f"Particles were moved back {self.frozen} times from where the target is not finite.")
        if self.stuck:
            said.append(f"More than five steps in a row: {', '.join(map(str, self.stuck))}.")
        if self.damped:
            said.append(f"{self.damped} steps needed up to {self.largest_damping:.0e} times the damping.")
        if self.shortened:
            said.append(f"{self.shortened} absurdly long moves were made shorter: lower the learning rate.")
        return said


@dataclass(frozen=True)
class Result:
    """Particles that approximate the target, and how they came about.

    Give it to `fit` in place of particles to go on from where it ended.
    """

    particles: PyTree
    """The particles: the structure of the initial ones, with a leading particle axis, in their own coordinates."""
    points: Float[Array, "n d"]
    """The same as one (n, d) array of unconstrained coordinates, in which the sampler works."""
    status: Status
    message: str
    num_steps: int
    """The number of steps taken, those of the fits that this one continued included."""
    history: History
    faults: Faults
    target: AbstractTarget
    sampler: AbstractSampler
    loop: Any
    """Everything the next step needs."""

    @property
    def shared(self) -> PyTree:
        """The parameters that all particles have in common, as they are now; `None` where there are none."""
        return self.target.shared

    def scores(self, data: Batch = None) -> Points:
        """∇log p at the particles, in unconstrained coordinates; give the (full) data where the target has data."""
        data = jax.tree.map(jnp.asarray, data)
        self.target.check_data(data, None)
        return self.target.scores(self.points, data)

    def summary(self) -> str:
        """A table of mean, standard deviation and quantiles for every coordinate of the parameters."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.particles)]
        values = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
        names = Layout.of(jax.tree.map(lambda leaf: leaf[0], self.particles)).coordinate_names()
        width = max(len("parameter"), *map(len, names))
        lines = [f"{'parameter':<{width}} {'mean':>10} {'sd':>10} {'5%':>10} {'50%':>10} {'95%':>10}"]
        for name, column in zip(names, values.T, strict=True):
            numbers = [column.mean(), column.std(), *np.quantile(column, [0.05, 0.5, 0.95])]
            lines.append(f"{name:<{width}} " + " ".join(f"{number:>10.4g}" for number in numbers))
        lines.append(f"{len(self.points)} particles, {self.num_steps} steps, {self.status.value}: {self.message}")
        return "\n".join(lines)


class DivergedError(RuntimeError):
    """A fit met numbers that are not finite. `result` holds the last particles that were."""

    def __init__(self, result: Result):
        super().__init__(result.message)
        self.result = result
