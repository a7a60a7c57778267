"""Stochastic gradient Langevin dynamics: every particle is an independent chain."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int

from ..core.types import (
    Batch,
    Key,
    Points,
    Scalar,
    Vector,
    as_number,
    cast_like,
    check_count,
    check_positive_number,
    check_share,
)
from ..targets.curvature import hessian_diagonal
from ..targets.target import BoundTarget
from .sampler import AbstractSampler, Info, Traits, make_info


class LangevinState(NamedTuple):
    """The chains, the number of steps taken, and for PSGLD V, each chain's running second moment of its gradients."""

    points: Points
    steps: Int[Array, ""]
    second_moment: Any = None


class SGLD(AbstractSampler):
    """θ ← θ + ε s(θ) + √(2ε) ξ, independently for every particle (Welling and Teh, 2011).

    Args:
        step_size: ε, a number or a schedule of the step count. In their notation ε is half the step size.
    """

    step_size: Any = eqx.field(converter=as_number)
    traits: ClassVar[Traits] = Traits(deterministic=False, interacting=False)

    def __check_init__(self) -> None:
        _check_step_size(self.step_size)

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> LangevinState:
        return LangevinState(points, jnp.zeros((), jnp.int32))

    def step(
        self, key: Key, state: LangevinState, target: BoundTarget, batch: Batch = None
    ) -> tuple[LangevinState, Info]:
        size = _step_size(self.step_size, state.steps, state.points)
        scores = target.scores(state.points, batch)
        noise = jr.normal(key, state.points.shape, state.points.dtype)
        moved = state.points + size * scores + jnp.sqrt(2 * size) * noise
        info = make_info(state.points, scores, moved, scores)
        return LangevinState(moved, state.steps + 1), info._replace(step_size=size)


class PSGLD(AbstractSampler):
    """θ ← θ + ε (G s + Γ) + √(2εG) ξ with G = 1/(λ + √V), for every particle: preconditioned SGLD (Li et al., 2016).

    V ← αV + (1−α) ḡ² is a running second moment of ḡ, the mean per-example gradient of the log-likelihood (the gradient
    of the log density where there are no examples). The score s is at full-data scale.

    Args:
        step_size: ε, a number or a schedule of the step count.
        decay: α.
        epsilon: λ.
        correction: include Γ_i = ∂G_i/∂θ_i, which takes one Hessian diagonal per step. Without it, as is usual, the
            adaptation of G biases the law of the chain, towards p/G where α = 0.
        freeze_after: the number of steps after which G stays fixed; the chain is then exact up to discretisation.
    """

    step_size: Any = eqx.field(converter=as_number)
    decay: Any = eqx.field(default=0.99, converter=as_number)
    epsilon: Any = eqx.field(default=1e-5, converter=as_number)
    correction: bool = eqx.field(default=False, static=True)
    freeze_after: int | None = eqx.field(default=None, static=True)
    traits: ClassVar[Traits] = Traits(deterministic=False, interacting=False)

    def __check_init__(self) -> None:
        _check_step_size(self.step_size)
        check_share("decay", self.decay)
        check_positive_number("epsilon", self.epsilon)
        if self.freeze_after is not None:
            check_count("freeze_after", self.freeze_after)

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> LangevinState:
        return LangevinState(points, jnp.zeros((), jnp.int32), jnp.zeros_like(points))

    def step(
        self, key: Key, state: LangevinState, target: BoundTarget, batch: Batch = None
    ) -> tuple[LangevinState, Info]:
        points = state.points
        size = _step_size(self.step_size, state.steps, points)
        adapting = jnp.asarray(True) if self.freeze_after is None else state.steps < self.freeze_after

        def one(point: Vector, second_moment: Vector) -> tuple[Vector, Vector, Vector, Vector]:
            return self._drift(target, batch, point, second_moment, adapting)

        scores, drift, preconditioner, second_moment = jax.vmap(one)(points, state.second_moment)
        noise = jr.normal(key, points.shape, points.dtype)
        moved = points + size * drift + jnp.sqrt(2 * size * preconditioner) * noise
        info = make_info(points, drift, moved, scores)
        return LangevinState(moved, state.steps + 1, second_moment), info._replace(step_size=size)

    def _drift(
        self, target: BoundTarget, batch: Batch, point: Vector, second_moment: Vector, adapting: Array
    ) -> tuple[Vector, Vector, Vector, Vector]:
        """Score, drift G s + Γ, preconditioner G, and the next V of one chain."""

        def mean_log_example(x: Vector) -> Scalar:
            return jnp.mean(target.log_examples(x, batch))

        likelihood, mean_gradient = jax.value_and_grad(mean_log_example)(point)
        base, base_gradient = jax.value_and_grad(target.log_base)(point)
        number = cast_like(target.num_data, point)
        score = cast_like(target.power, point) * (base_gradient + number * mean_gradient)
        score = jnp.where(jnp.isfinite(likelihood + base), score, jnp.nan)  # as in `BoundTarget.score`

        new_share = jnp.where(adapting, 1 - cast_like(self.decay, point), 0)
        second_moment = (1 - new_share) * second_moment + new_share * mean_gradient**2
        root = jnp.sqrt(second_moment)
        preconditioner = 1 / (cast_like(self.epsilon, point) + root)
        drift = preconditioner * score
        if self.correction:
            safe = jnp.where(root > 0, root, 1)
            derivative = new_share * mean_gradient * hessian_diagonal(mean_log_example, point) / safe
            drift = drift - preconditioner**2 * derivative
        return score, drift, preconditioner, second_moment


def sgld(step_size: Any) -> SGLD:
    """Stochastic gradient Langevin dynamics; see `SGLD`."""
    return SGLD(step_size)


def psgld(
    step_size: Any,
    *,
    decay: float = 0.99,
    epsilon: float = 1e-5,
    correction: bool = False,
    freeze_after: int | None = None,
) -> PSGLD:
    """Preconditioned stochastic gradient Langevin dynamics; see `PSGLD` for the arguments."""
    return PSGLD(step_size, decay, epsilon, correction, freeze_after)


def _check_step_size(step_size: Any) -> None:
    if not callable(step_size):
        check_positive_number("step_size", step_size)


def _step_size(step_size: Any, count: Array, points: Points) -> Scalar:
    size = step_size(count) if callable(step_size) else step_size
    if size is None or jnp.shape(size) != () or jnp.iscomplexobj(size):
        got = "None" if size is None else f"an array of {jnp.result_type(size)}{list(jnp.shape(size))}"
        raise ValueError(f"`step_size` must be one real number, or a schedule that returns one, got {got}.")
    return cast_like(size, points)
