"""Samplers that move particles along a Stein velocity: SVGD with any kernel rule, gradient-free SVGD, SVN."""

from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..core.arrays import as_points
from ..core.particles import Scored
from ..core.types import (
    Batch,
    Key,
    Points,
    as_number,
    check_callable,
    check_choice,
    check_positive,
    is_concrete,
    is_real_number,
    scale_number,
)
from ..kernels.matrix import as_matrix_kernel, check_scalar_kernel, tilted_velocity
from ..kernels.mixture import Weighting
from ..kernels.scalar import RBF, AbstractScalarKernel
from ..linalg.metrics import AbstractMetric, DiagonalMetric
from ..targets.curvature import AbstractCurvature
from ..targets.target import BoundTarget, LogDensity
from .kernel_rule import AbstractKernelRule, AnchorMixture, AverageMetric, FixedKernel, MetricSettings
from .newton import newton_velocity
from .sampler import AbstractSampler, Info, Traits, make_info


class SteinState(NamedTuple):
    """The particles, and the states of the optimizer and of the kernel rule."""

    points: Points
    optimizer: Any
    rule: Any


class SVGD(AbstractSampler):
    """x_i ← x_i + ε φ(x_i): Algorithm 1 of Wang et al. (2019), with any kernel rule and any optax step rule."""

    rule: AbstractKernelRule
    optimizer: optax.GradientTransformation

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> SteinState:
        return SteinState(points, self.optimizer.init(points), self.rule.init(target, points, batch))

    def step(self, key: Key, state: SteinState, target: BoundTarget, batch: Batch = None) -> tuple[SteinState, Info]:
        scores = target.scores(state.points, batch)
        rule, kernel = self.rule.update(state.rule, target, state.points, batch)
        with jax.named_scope("velocity"):
            velocity = kernel.velocity(state.points, Scored.uniform(state.points, scores))
        return move_along(self.optimizer, state, velocity, scores, rule)

    def damped(self, factor: float) -> "SVGD | None":
        rule = self.rule.damped(factor)
        return None if rule is None else SVGD(rule, self.optimizer)


class GradientFreeSVGD(AbstractSampler):
    """SVGD without gradients of the target: importance weights w = ρ/p and the score of a surrogate ρ.

    K(x, y) = k(x, y) w(x) w(y) I turns the score s into s + ∇log w = ∇log ρ (Han and Liu, 2018).

    Args:
        rule: the rule of the kernel k, which must not need curvature.
        surrogate: log ρ, a function of the parameters like the target's log density.
        optimizer: the step rule.
        normalize: divide the weights by their sum over the particles and drop the outer w(x), as Han and Liu do in
            practice, so that the direction does not depend on unknown constants. `False` computes exactly the kernel
            above.
    """

    rule: AbstractKernelRule
    surrogate: Any
    optimizer: optax.GradientTransformation
    normalize: bool = eqx.field(default=True, static=True)
    traits: ClassVar[Traits] = Traits(differentiates=False)

    def __check_init__(self) -> None:
        check_callable("surrogate", self.surrogate, "a log density, a function of the parameters")

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> SteinState:
        return SteinState(points, self.optimizer.init(points), self.rule.init(target, points, batch))

    def step(self, key: Key, state: SteinState, target: BoundTarget, batch: Batch = None) -> tuple[SteinState, Info]:
        points = state.points
        surrogate = BoundTarget(LogDensity(self.surrogate), target.space, target.shared)
        log_rho, surrogate_scores = jax.vmap(jax.value_and_grad(surrogate.log_density))(points)
        log_weights = log_rho - target.log_densities(points, batch)
        if self.normalize:
            # `Scored.uniform` has weights 1/n, so the factor n gives the velocity of plain SVGD for w = 1.
            log_weights = jax.nn.log_softmax(log_weights) + jnp.log(jnp.asarray(points.shape[0], points.dtype))
        rule, kernel = self.rule.update(state.rule, target, points, batch)
        source = Scored.uniform(points, surrogate_scores)
        velocity = tilted_velocity(kernel, points, source, log_weights, jnp.zeros_like(points))
        if not self.normalize:
            velocity = jnp.exp(log_weights)[:, None] * velocity
        return move_along(self.optimizer, state, velocity, None, rule)


class SVN(AbstractSampler):
    """x_i ← x_i + ε H̃_i⁻¹ φ_k(x_i): Stein variational Newton (Detommaso et al., 2018), Eq. (19).

    Args:
        curvature: H(x). The matrices H̃_i add rank-one terms, so a structured operator is converted to a dense matrix.
        kernel: a radial scalar kernel.
        optimizer: the step rule.
        metric: "mean" measures the kernel's distances in the mean curvature, "identity" in Euclidean distance. With
            "mean" and the fixed bandwidth d, `RBF(d)`, it is the scaled Hessian kernel of Detommaso et al.
        damping: of the solves, relative to the scale of each H̃_i.
    """

    curvature: AbstractCurvature
    kernel: AbstractScalarKernel
    optimizer: optax.GradientTransformation
    metric: Literal["mean", "identity"] = eqx.field(default="mean", static=True)
    damping: Any = eqx.field(default=1e-6, converter=as_number)

    def __check_init__(self) -> None:
        check_choice("metric", self.metric, ("mean", "identity"))
        check_positive("damping", self.damping)

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> SteinState:
        return SteinState(points, self.optimizer.init(points), None)

    def step(self, key: Key, state: SteinState, target: BoundTarget, batch: Batch = None) -> tuple[SteinState, Info]:
        points = state.points
        scores = target.scores(points, batch)
        curvature = self.curvature.at(target, points, batch)
        if self.metric == "mean":
            metric: AbstractMetric = curvature.average().factorize(self.damping)
        else:
            metric = DiagonalMetric(jnp.ones(points.shape[1], points.dtype))
        kernel = self.kernel.adapt(jax.vmap(metric.whiten)(points))
        hessians = jax.vmap(lambda operator: operator.as_matrix())(curvature)
        velocity = newton_velocity(kernel, metric, Scored.uniform(points, scores), hessians, self.damping)
        return move_along(self.optimizer, state, velocity, scores, None)

    def damped(self, factor: float) -> "SVN":
        return eqx.tree_at(lambda sampler: sampler.damping, self, scale_number(self.damping, factor))


def move_along(
    optimizer: optax.GradientTransformation, state: SteinState, velocity: Points, scores: Points | None, rule: Any
) -> tuple[SteinState, Info]:
    """Move the particles along `velocity` by the optax step rule, which descends: it gets −velocity as its gradient."""
    with jax.numpy_dtype_promotion("standard"):  # some step rules mix integers and floats
        updates, optimizer_state = optimizer.update(-velocity, state.optimizer, state.points)
        moved = optax.apply_updates(state.points, updates)
    return SteinState(moved, optimizer_state, rule), make_info(state.points, velocity, moved, scores)


def svgd(kernel: Any = None, optimizer: Any = None) -> SVGD:
    """Stein variational gradient descent with one kernel for all particles.

    Args:
        kernel: a scalar kernel (times the identity), a matrix kernel such as `Graphical(...)`, or a function K(x, y)
            with a d×d result. The default, `RBF()` with the median bandwidth, is vanilla SVGD.
        optimizer: an optax optimizer, or a number for Adagrad with that learning rate. Reuse one optimizer object over
            several fits: a new object causes a new compilation.
    """
    return SVGD(FixedKernel(as_matrix_kernel(RBF() if kernel is None else kernel)), as_optimizer(optimizer))


def matrix_svgd(
    kind: Literal["average", "mixture"],
    curvature: AbstractCurvature,
    kernel: Any = None,
    optimizer: Any = None,
    *,
    damping: Any = 1e-6,
    decay: float = 0.0,
    refresh_every: int = 1,
    measure_every: int = 1,
    per_block: bool = False,
    anchors: Any = None,
    shrinkage: Any = 0.0,
    temperature: Any = 1.0,
    weighting: Weighting = "exact",
) -> SVGD:
    """Matrix-SVGD with one metric ("average", Eqs. (13) to (15)) or one for each anchor ("mixture", Eqs. (16) to (18)).

    Args:
        kind: "average" or "mixture".
        curvature: the curvature that is factorized into metrics, such as `Hessian()` or `Fisher(model, Bernoulli())`.
        kernel: K0 of Eq. (12); `RBF()` with the median bandwidth in the metric by default.
        optimizer: an optax optimizer, or a number for Adagrad with that learning rate.
        damping: added to every metric, relative to its mean eigenvalue.
        decay: of the running average of curvature over minibatches, min(1 − 1/t, decay); 0 for none.
        refresh_every: the number of steps between two factorizations of the metric.
        measure_every: the number of steps between two updates of the running average.
        per_block: use a separate kernel for each block of the curvature, such as each layer of `KFAC`.
        anchors: for the mixture, `None` for all particles, a number of particles, or an (l, d) array of points in
            unconstrained coordinates.
        shrinkage: for the mixture, s in Q_l ← (1 − s) Q_l + s mean Q.
        temperature: for the mixture's weights; 1 is Eq. (17). In many dimensions a rule such as `Median()` keeps the
            particles coupled.
        weighting: for the mixture's weights; "exact" is Eq. (17).
    """
    check_choice("kind", kind, ("average", "mixture"))
    if not isinstance(curvature, AbstractCurvature):
        raise ValueError(f"`curvature` must be a curvature such as `Hessian()`, got {curvature!r}.")
    base = as_matrix_kernel(RBF() if kernel is None else kernel)
    settings = MetricSettings(damping, decay, refresh_every, measure_every)
    if kind == "average":
        if anchors is not None or (shrinkage, temperature, weighting) != (0.0, 1.0, "exact"):
            raise ValueError(
                "`anchors`, `shrinkage`, `temperature` and `weighting` belong to kind 'mixture', got one of them with "
                "kind 'average'."
            )
        return SVGD(AverageMetric(curvature, base, settings, per_block=per_block), as_optimizer(optimizer))
    number = int(anchors) if isinstance(anchors, int | np.integer) else None
    points = None if anchors is None or number is not None else _as_anchors(anchors)
    rule = AnchorMixture(curvature, base, points, number, shrinkage, temperature, weighting, settings, per_block)
    return SVGD(rule, as_optimizer(optimizer))


def gradient_free_svgd(
    surrogate: Any, kernel: Any = None, optimizer: Any = None, *, normalize: bool = True
) -> GradientFreeSVGD:
    """SVGD for targets that cannot be differentiated; see `GradientFreeSVGD` for the arguments."""
    base = as_matrix_kernel(RBF() if kernel is None else kernel)
    return GradientFreeSVGD(FixedKernel(base), surrogate, as_optimizer(optimizer), normalize)


def svn(
    curvature: AbstractCurvature,
    kernel: AbstractScalarKernel | None = None,
    optimizer: Any = None,
    *,
    metric: Literal["mean", "identity"] = "mean",
    damping: Any = 1e-6,
) -> SVN:
    """Stein variational Newton; see `SVN` for the arguments."""
    if not isinstance(curvature, AbstractCurvature):
        raise ValueError(f"`curvature` must be a curvature such as `Hessian()`, got {curvature!r}.")
    if kernel is not None:
        check_scalar_kernel("kernel", kernel)
    return SVN(curvature, RBF() if kernel is None else kernel, as_optimizer(optimizer), metric, damping)


def _as_anchors(anchors: Any) -> Points:
    points = as_points("anchors", anchors)
    if is_concrete(points) and not bool(jnp.all(jnp.isfinite(points))):
        raise ValueError("`anchors` must be finite, got NaN or infinity among them.")
    return points


def as_optimizer(optimizer: Any) -> optax.GradientTransformation:
    """Convert to an optax optimizer: a learning rate or a schedule to Adagrad, `None` to Adagrad at 0.3."""
    if optimizer is None:
        return _adagrad(0.3)
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        return optimizer
    if is_real_number(optimizer):
        check_positive("optimizer", optimizer)
        if not is_concrete(optimizer):  # a learning rate under `vmap`
            return optax.adagrad(optimizer, initial_accumulator_value=0.0)
        return _adagrad(float(optimizer))
    if callable(optimizer) and is_real_number(optimizer(0)):  # a schedule; `optax.adam(0)` is an optimizer
        return _adagrad(optimizer)
    raise ValueError(
        f"`optimizer` must be an optax optimizer, a learning rate or a schedule of one, got {optimizer!r}."
    )


@cache
def _adagrad(learning_rate: Any) -> optax.GradientTransformation:
    # The same learning rate gives the same object, since compiled steps are cached by the identity of the optimizer.
    return optax.adagrad(learning_rate, initial_accumulator_value=0.0)
