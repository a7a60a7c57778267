"""Kernel rules: from the particles to the kernel of a step, by a metric that is refreshed every few steps.

The state of a rule holds the running average of minibatch curvature, and the last factorization.
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.reprs import OneLine
from ..core.types import (
    Batch,
    Points,
    as_number,
    cast_like,
    check_choice,
    check_count,
    check_positive,
    check_share,
    scale_number,
)
from ..kernels.bandwidth import AbstractBandwidth
from ..kernels.matrix import AbstractMatrixKernel, PerBlock, as_matrix_kernel
from ..kernels.mixture import WEIGHTINGS, Mixture, Weighting
from ..kernels.preconditioned import Preconditioned
from ..linalg.metrics import AbstractMetric, BlocksMetric, split_columns
from ..linalg.operators import AbstractOperator, Dense
from ..targets.curvature import AbstractCurvature, Repair, repaired_matrix
from ..targets.target import BoundTarget


class AbstractKernelRule(OneLine):
    """Builds the kernel of a step."""

    @abc.abstractmethod
    def init(self, target: BoundTarget, points: Points, batch: Batch) -> Any:
        """The state before the first step; raises `ValueError` where the rule does not fit the particles."""

    @abc.abstractmethod
    def update(self, state: Any, target: BoundTarget, points: Points, batch: Batch) -> tuple[Any, AbstractMatrixKernel]:
        """The next state, and the kernel for this step."""

    def damped(self, factor: float) -> "AbstractKernelRule | None":
        """The same rule with `factor` times the damping of its metrics; `None` where it factorizes none."""
        return None


class FixedKernel(AbstractKernelRule):
    """The same kernel at every step, its bandwidth adapted to the particles."""

    kernel: AbstractMatrixKernel = eqx.field(converter=as_matrix_kernel)

    def init(self, target: BoundTarget, points: Points, batch: Batch) -> None:
        self.kernel.check(points.shape[1])

    def update(
        self, state: None, target: BoundTarget, points: Points, batch: Batch
    ) -> tuple[None, AbstractMatrixKernel]:
        with jax.named_scope("bandwidth"):
            return None, self.kernel.adapt(points)


Measure: TypeAlias = Callable[[], AbstractOperator]
Factorize: TypeAlias = Callable[[AbstractOperator], AbstractMetric]


class MetricState(NamedTuple):
    """A running average of curvature, and the metric last factorized from it."""

    steps: Int[Array, ""]
    curvature: AbstractOperator
    metric: AbstractMetric


class MetricSettings(OneLine):
    """How curvature becomes a metric: damping, a running average over steps, and how often to factorize.

    Args:
        damping: relative to the scale of the averaged operator.
        decay: ρ of the running average over steps, ρ_t = min(1 − 1/t, ρ); 0 uses the current curvature alone.
        refresh_every: the number of steps between factorizations.
        measure_every: the number of steps between updates of the running average; without one, curvature is measured
            only when it is factorized.
    """

    damping: Any = eqx.field(default=1e-6, converter=as_number)
    decay: float = eqx.field(default=0.0, static=True)
    refresh_every: int = eqx.field(default=1, static=True)
    measure_every: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        check_positive("damping", self.damping)
        check_share("decay", self.decay)
        check_count("refresh_every", self.refresh_every)
        check_count("measure_every", self.measure_every)
        if self.refresh_every % self.measure_every:
            raise ValueError(
                f"`refresh_every` must be a multiple of `measure_every`, {self.measure_every}, got "
                f"{self.refresh_every}: a metric is factorized from curvature measured at that step."
            )

    def init(self, measure: Measure, factorize: Factorize) -> MetricState:
        """The state before the first step: zeros of the right shapes, which the first update replaces."""
        shapes = eqx.filter_eval_shape(_measured_metric, measure, factorize)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return MetricState(jnp.zeros((), jnp.int32), *zeros)

    def update(self, state: MetricState, measure: Measure, factorize: Factorize) -> MetricState:
        """The state after this step's curvature, whose metric is the one to use now.

        Args:
            state: the state so far.
            measure: computes the curvature of this step.
            factorize: turns an averaged curvature into a metric.
        """
        due = state.steps % self.refresh_every == 0
        steps = state.steps + 1
        if self.decay == 0:  # without an average, curvature is measured only when it is factorized
            renew = partial(_measured_metric, measure, factorize)
            return MetricState(steps, *_when(self.refresh_every, due, renew, (state.curvature, state.metric)))
        measurements = 1 + state.steps // self.measure_every
        rate = jnp.minimum(1 - 1 / measurements.astype(float), self.decay)
        measuring = state.steps % self.measure_every == 0

        # Curvature that is not finite would stay in the running average, hidden by a metric of an earlier step. So the
        # metric becomes NaN at once: the loop rejects the step, and recovery moves the faulty particle back.
        # Both conditions depend on the step number alone, so `vmap` keeps them conditions.
        def measure_now() -> tuple[AbstractOperator, AbstractMetric]:
            curvature = state.curvature.blend(measure(), rate)
            finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(curvature)]))
            metric = _when(self.refresh_every // self.measure_every, due, lambda: factorize(curvature), state.metric)
            metric = jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.asarray(jnp.nan, leaf.dtype)), metric)
            return curvature, metric

        return MetricState(steps, *_when(self.measure_every, measuring, measure_now, (state.curvature, state.metric)))


def _measured_metric(measure: Measure, factorize: Factorize) -> tuple[AbstractOperator, AbstractMetric]:
    """The curvature of this step and its metric."""
    curvature = measure()
    return curvature, factorize(curvature)


def _when(every: int, due: Array, renew: Callable[[], Any], old: Any) -> Any:
    """`renew()` where it is due, else `old`."""
    return renew() if every == 1 else jax.lax.cond(due, renew, lambda: old)


class AverageMetric(AbstractKernelRule):
    """One metric, Q the mean of the particles' curvatures, Eq. (15), and the constant kernel of Eq. (13).

    Args:
        curvature: what to average.
        kernel: K0 of Eq. (12), adapted in the metric.
        settings: damping, running average, refreshing.
        repair: repairs the *mean* of curvature that is not repaired itself (`Hessian(repair=None)`): the mean is then
            exactly Eq. (15), and negative directions are repaired once, after averaging.
        per_block: a separate kernel for each block of the curvature, such as each layer of `KFAC` (see `PerBlock`).
    """

    curvature: AbstractCurvature
    kernel: AbstractMatrixKernel = eqx.field(converter=as_matrix_kernel)
    settings: MetricSettings = MetricSettings()
    repair: Repair = eqx.field(default=None, static=True)
    per_block: bool = eqx.field(default=False, static=True)

    def init(self, target: BoundTarget, points: Points, batch: Batch) -> MetricState:
        if not self.per_block:
            self.kernel.check(points.shape[1])
        return self.settings.init(lambda: self._measure(target, points, batch), self._factorize)

    def update(
        self, state: MetricState, target: BoundTarget, points: Points, batch: Batch
    ) -> tuple[MetricState, AbstractMatrixKernel]:
        state = self.settings.update(state, lambda: self._measure(target, points, batch), self._factorize)

        @jax.named_scope("bandwidth")
        def build(metric: AbstractMetric, points: Points) -> AbstractMatrixKernel:
            return Preconditioned(self.kernel, metric).adapt(points)

        return state, _build_kernel(build, self.per_block, state.metric, points)

    def damped(self, factor: float) -> "AverageMetric":
        return eqx.tree_at(lambda rule: rule.settings.damping, self, scale_number(self.settings.damping, factor))

    @jax.named_scope("curvature")
    def _measure(self, target: BoundTarget, points: Points, batch: Batch) -> AbstractOperator:
        return self.curvature.at(target, points, batch).average()

    @jax.named_scope("factorization")
    def _factorize(self, curvature: AbstractOperator) -> AbstractMetric:
        if self.repair is not None:
            if not isinstance(curvature, Dense):
                raise ValueError(f"`repair` of the mean needs dense curvature, got {type(curvature).__name__}.")
            curvature = Dense(repaired_matrix(curvature.matrix, self.repair, 1e-3))
        return _metric_for(self.kernel, curvature, self.settings.damping)


class AnchorMixture(AbstractKernelRule):
    """A metric around every anchor, Eqs. (16) to (18).

    Args:
        curvature: Q_l at the anchors.
        kernel: K0 of Eq. (12), adapted in every anchor's metric.
        anchors: an (l, d) array of points in unconstrained coordinates; `None` for the particles themselves.
        num_anchors: without `anchors`, use the first l particles alone (particles are exchangeable); `None` for all, as
            in the paper.
        shrinkage: s in Q_l ← (1 − s) Q_l + s mean Q. 0 is the paper's text; the released code takes ½ in its toy study.
        temperature, weighting: of the weights, see `Mixture`; the temperature may be a rule such as `Median()`.
        settings: damping, running average, refreshing.
        per_block: a separate mixture, with its weights, for each block of the curvature (see `PerBlock`).
    """

    curvature: AbstractCurvature
    kernel: AbstractMatrixKernel = eqx.field(converter=as_matrix_kernel)
    anchors: Float[Array, "l d"] | None = None
    num_anchors: int | None = eqx.field(default=None, static=True)
    shrinkage: Any = eqx.field(default=0.0, converter=as_number)
    temperature: Any = eqx.field(default=1.0, converter=as_number)
    weighting: Weighting = eqx.field(default="exact", static=True)
    settings: MetricSettings = MetricSettings()
    per_block: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        check_share("shrinkage", self.shrinkage)
        if not isinstance(self.temperature, AbstractBandwidth):
            check_positive("temperature", self.temperature)
        check_choice("weighting", self.weighting, WEIGHTINGS)
        if self.num_anchors is not None:
            check_count("anchors", self.num_anchors)

    def init(self, target: BoundTarget, points: Points, batch: Batch) -> MetricState:
        n, d = points.shape
        if not self.per_block:
            self.kernel.check(d)
        if self.num_anchors is not None and self.num_anchors > n:
            raise ValueError(f"`anchors` must be at most the number of particles, {n}, got {self.num_anchors}.")
        if self.anchors is not None and self.anchors.shape[1:] != (d,):
            raise ValueError(f"`anchors` must have shape (l, {d}), got {self.anchors.shape}.")
        return self.settings.init(lambda: self._measure(target, points, batch), self._factorize)

    def damped(self, factor: float) -> "AnchorMixture":
        return eqx.tree_at(lambda rule: rule.settings.damping, self, scale_number(self.settings.damping, factor))

    def anchors_for(self, points: Points) -> Float[Array, "l d"]:
        """The anchors for these particles."""
        if self.anchors is not None:
            return cast_like(self.anchors, points)
        return points if self.num_anchors is None else points[: self.num_anchors]

    def update(
        self, state: MetricState, target: BoundTarget, points: Points, batch: Batch
    ) -> tuple[MetricState, AbstractMatrixKernel]:
        state = self.settings.update(state, lambda: self._measure(target, points, batch), self._factorize)
        anchors = self.anchors_for(points)

        @jax.named_scope("bandwidth")
        def build(metrics: AbstractMetric, anchors: Float[Array, "l d"], points: Points) -> AbstractMatrixKernel:
            return Mixture.of(self.kernel, metrics, anchors, points, self.temperature, self.weighting)

        return state, _build_kernel(build, self.per_block, state.metric, anchors, points)

    @jax.named_scope("curvature")
    def _measure(self, target: BoundTarget, points: Points, batch: Batch) -> AbstractOperator:
        each = self.curvature.at(target, self.anchors_for(points), batch)
        mean = each.average()
        return jax.vmap(lambda operator: operator.blend(mean, 1 - self.shrinkage))(each)

    @jax.named_scope("factorization")
    def _factorize(self, curvature: AbstractOperator) -> AbstractMetric:
        return jax.vmap(lambda operator: _metric_for(self.kernel, operator, self.settings.damping))(curvature)


def _metric_for(kernel: AbstractMatrixKernel, curvature: AbstractOperator, damping: Any) -> AbstractMetric:
    """The metric of a curvature, with the root that the kernel asks for."""
    return curvature.factorize(damping, symmetric=not kernel.rotation_invariant)


def _build_kernel(
    build: Callable[..., AbstractMatrixKernel], per_block: bool, metric: AbstractMetric, *clouds: Float[Array, "_ d"]
) -> AbstractMatrixKernel:
    """`build(metric, *clouds)`; with `per_block` for every block of the metric, on the columns of that block."""
    if not per_block:
        return build(metric, *clouds)
    if not isinstance(metric, BlocksMetric):
        raise ValueError(
            f"`per_block` needs curvature in blocks, such as `KFAC`, got {type(metric).__name__}. Leave it out."
        )
    sizes = tuple(part.size for part in metric.parts)
    columns = zip(*(split_columns(cloud, sizes) for cloud in clouds), strict=True)
    parts = tuple(build(part, *block) for part, block in zip(metric.parts, columns, strict=True))
    return PerBlock(parts, sizes)
