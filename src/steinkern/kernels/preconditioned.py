"""Constant preconditioning: a kernel in the coordinates of a metric, Eqs. (12) to (14)."""

from typing import TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.particles import Scored
from ..core.types import Matrix, Points, Vector
from ..linalg.metrics import AbstractMetric, dot
from .in_metric import (
    InMetric,
    adapt_in_metric,
    distances_in_metric,
    distances_within_metric,
    needs_only_distances,
)
from .matrix import AbstractMatrixKernel, Isotropic, as_matrix_kernel
from .radial import center_of
from .radial.ring import devices_in_ring
from .scalar import AbstractScalarKernel

_MAX_RADIAL_PAIRS = 2**16
"""The most pairs for which two applications of Q cost less than whitening and mapping back."""


class Preconditioned(AbstractMatrixKernel):
    """K(x, y) = R⁻¹ K0(Rx, Ry) R⁻ᵀ with Q = RᵀR: constant preconditioning, Eqs. (12) to (14).

    With a radial K0 = k·I this is Q⁻¹ k(‖x − y‖²_Q), Eq. (13), for any root R. The velocity is that of K0 in the
    coordinates u = Rx, mapped back by R⁻¹: the change-of-variables theorem with a linear map.
    """

    base: AbstractMatrixKernel = eqx.field(converter=as_matrix_kernel)
    metric: AbstractMetric

    def __check_init__(self) -> None:
        if not isinstance(self.metric, AbstractMetric):
            raise ValueError(
                "`metric` must be a metric: `DenseMetric.of(matrix)`, or what an operator's `factorize` gives; got "
                f"{type(self.metric).__name__}."
            )

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        inner = self.base(self.metric.whiten(x), self.metric.whiten(y))
        left = jax.vmap(self.metric.unwhiten, 1, 1)(inner)
        return self.metric.unwhiten(left)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        is_small = (
            at.shape[0] * source.points.shape[0] <= _MAX_RADIAL_PAIRS and devices_in_ring(source.points.shape[0]) == 1
        )
        if is_small and has_radial_form(self.base) and self.base.precision == "float32":
            return self._radial_velocity(self.base.scalar, at, source)
        moved = self.base.velocity(self.metric.whiten(at), self._whiten(source))
        return self.metric.unwhiten(moved)

    def divergence(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
        # tr[R⁻¹ (∇φ0) R] = tr[∇φ0]
        return self.base.divergence(self.metric.whiten(at), self._whiten(source))

    def adapt(self, points: Points) -> "Preconditioned":
        if not has_radial_form(self.base):
            return Preconditioned(self.base.adapt(self.metric.whiten(points)), self.metric)
        scalar = adapt_in_metric(self.base.scalar, self._in_metric(points - center_of(points)))
        return Preconditioned(Isotropic(scalar, self.base.precision, self.base.backend), self.metric)

    def check(self, dimension: int) -> None:
        self.base.check(dimension)

    def _radial_velocity(
        self, scalar: AbstractScalarKernel, at: Float[Array, "m d"], source: Scored
    ) -> Float[Array, "m d"]:
        """The velocity with k(r²) I for K0, by two applications of the metric to each point.

        Mapped back by R⁻¹, the drive is Q⁻¹ of the weighted scores, and the repulsion along R(x − y) is along x − y.
        """
        center = center_of(source.points)
        points, rows = source.points - center, at - center
        sources = self._in_metric(points)
        same = at is source.points
        r2 = distances_within_metric(sources) if same else distances_in_metric(self._in_metric(rows), sources)
        values, slopes = scalar.profile(r2)
        slopes = 2 * slopes * source.weights[None, :]
        drive = self.metric.solve(dot(values * source.weights[None, :], source.scores))
        return drive + dot(slopes, points) - jnp.sum(slopes, axis=1)[:, None] * rows

    def _in_metric(self, points: Points) -> InMetric:
        """The points in the metric, its blocks side by side, so that distances take one matrix product."""
        form = self.metric.for_arranged().bilinear(self.metric.arrange(points))
        return InMetric(*((each,) for each in form))

    def _whiten(self, source: Scored) -> Scored:
        points = self.metric.whiten(source.points)
        return Scored(points, self.metric.pull_score(source.scores), source.weights)


def has_radial_form(kernel: AbstractMatrixKernel) -> TypeGuard[Isotropic]:
    """Whether a kernel is k(r²) I with the backend "auto", and its bandwidth a number or a rule of distances."""
    return isinstance(kernel, Isotropic) and kernel.backend == "auto" and needs_only_distances(kernel.scalar.bandwidth)
