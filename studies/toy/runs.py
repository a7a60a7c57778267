"""The runs of the toy study: particles on a target, and their distance to it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float

from steinkern.core.types import Key, Points
from steinkern.kernels.scalar import RBF
from steinkern.samplers.sampler import AbstractSampler
from steinkern.targets.curvature import GaussNewton, Hessian
from steinkern.targets.target import LogDensity

from ..methods import Setting, build
from .targets import LogMMD, ToyTarget

NUM_PARTICLES = 50
NUM_DRAWS = 4000
NUM_LEVELS = 400
"""How many sets of exact draws the level of exact draws is a mean over."""
OPTIMIZERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "adagrad": partial(optax.adagrad, initial_accumulator_value=0.0),
    "rmsprop": partial(optax.rmsprop, decay=0.9),
    "plain": optax.sgd,
}


@dataclass(frozen=True, eq=False)
class Task:
    """A target, the seeds to run on, and how many steps."""

    target: ToyTarget
    seeds: tuple[int, ...]
    last: int

    @cached_property
    def measure(self) -> LogMMD:
        """Log MMD² to the exact draws that particles are compared with: one set for a target."""
        return LogMMD.to(self.target.draws(jr.key(20190612), NUM_DRAWS))

    @property
    def iterations(self) -> np.ndarray:
        """About 70 iterations, evenly spaced in log, with the paper's among them."""
        spaced = np.unique(np.geomspace(1, self.last, 70).round().astype(int))
        return np.union1d(spaced, [t for t in self.target.iterations if t <= self.last])

    @property
    def reported(self) -> list[int]:
        """The reported iteration and the last one, where a run reaches them."""
        return sorted({min(self.target.reported_iteration, self.last), self.last})

    def protocol(self) -> dict[str, Any]:
        """The inputs of a run besides its setting."""
        sizes = {"particles": NUM_PARTICLES, "exact_draws": NUM_DRAWS, "precision": jnp.zeros(()).dtype.name}
        return {"seeds": list(self.seeds), "iterations": self.iterations.tolist(), **sizes}

    def exact_levels(self) -> Float[np.ndarray, " levels"]:
        """Log MMD² of as many exact draws as there are particles, independent of those that they are compared with."""
        draws = self.target.draws(jr.key(7), NUM_LEVELS * NUM_PARTICLES)
        return np.asarray(self.measure.along(draws.reshape(NUM_LEVELS, NUM_PARTICLES, 2)))

    def at(self, values: Any, iteration: int) -> np.ndarray:
        """What was kept of an iteration; `values` has them along its first axis."""
        return np.array(values[int(np.searchsorted(self.iterations, iteration))], float)


def sampler(method: str, setting: Setting, target: ToyTarget) -> AbstractSampler:
    """The sampler of a setting. All numbers may be traced."""
    residual: Any = target.residual  # settings have "gauss_newton" on sums of squares alone
    curvature = GaussNewton(residual) if setting["curvature"] == "gauss_newton" else Hessian(floor=1e-3)
    return build(
        method,
        OPTIMIZERS[setting["rule"]](setting["step_size"]),
        setting["step_size"],
        curvature,
        RBF() if setting["bandwidth"] == "median" else RBF(2.0),
        mixture={name: setting[name] for name in ("shrinkage", "temperature")},
    )


def first_particles(seed: Any) -> Float[Array, "n 2"]:
    """1.5·N(0, I), the same for every method at a seed."""
    return 1.5 * jr.normal(jr.fold_in(jr.key(0), seed), (NUM_PARTICLES, 2))


def trajectory(
    key: Key, method: str, setting: Setting, target: ToyTarget, points: Points, num_steps: int
) -> Float[Array, "t n 2"]:
    """The particles after 0, 1, …, `num_steps` steps."""
    moves = sampler(method, setting, target)
    bound = LogDensity(target.log_density).bind(points[0])

    def step(state: Any, step_key: Key) -> tuple[Any, Points]:
        state, _ = moves.step(step_key, state, bound)
        return state, state.points

    _, later = jax.lax.scan(step, moves.init(bound, points), jr.split(key, num_steps))
    return jnp.concatenate([points[None], later])


def trajectories(method: str, setting: Setting, task: Task) -> Float[np.ndarray, "s t n 2"]:
    """The trajectory of every seed, all under one `vmap`."""

    def one(seed: Array) -> Array:
        key = jr.fold_in(jr.key(1), seed)
        return trajectory(key, method, setting, task.target, first_particles(seed), task.last)

    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(task.seeds)))
