"""Sums of kernels, and the kernel of affine velocities."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.particles import Scored
from ..core.types import Matrix, Points, Vector, as_number, cast_like, check_positive
from .matrix import AbstractMatrixKernel, Linear, as_matrix_kernel


class Affine(AbstractMatrixKernel):
    """K(x, y) = w (1 + (x − c)ᵀ(y − c)) I, whose velocities are affine functions of x.

    Particles are at rest where E[s] = 0 and E[(x − c) sᵀ] = −I, Stein's identity for constant and linear functions. A
    Gaussian target then has exactly the particles' mean and covariance (Liu and Wang, 2018).

    Args:
        center: c; the mean of the particles by default, which `adapt` computes.
        weight: w, relative to other kernels in a `Sum`.
    """

    center: Float[Array, " d"] | None = None
    weight: Any = eqx.field(default=1.0, converter=as_number)

    def __check_init__(self) -> None:
        check_positive("weight", self.weight)

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        center = self._center(x)
        return cast_like(self.weight, x) * Linear()(x - center, y - center)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        center = self._center(at)[None, :]
        centered = Scored(source.points - center, source.scores, source.weights)
        return cast_like(self.weight, at) * Linear().velocity(at - center, centered)

    def adapt(self, points: Points) -> "Affine":
        return Affine(jnp.mean(points, axis=0), self.weight) if self.center is None else self

    @property
    def rotation_invariant(self) -> bool:
        return self.center is None  # a fixed centre does not rotate with the particles

    def _center(self, x: Array) -> Array:
        if self.center is None:
            raise ValueError("`center` is the particles' mean: call `kernel.adapt(points)` first, or give a point.")
        return cast_like(self.center, x)


class Sum(AbstractMatrixKernel):
    """K(x, y) = Σ_b K_b(x, y). The velocity is the sum of the velocities.

    Args:
        parts: the kernels; scalar kernels and functions are converted.
    """

    parts: tuple[AbstractMatrixKernel, ...] = eqx.field(
        converter=lambda parts: tuple(as_matrix_kernel(part) for part in parts)
    )

    def __check_init__(self) -> None:
        if not self.parts:
            raise ValueError("`parts` must hold at least one kernel, got none.")

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        return sum((part(x, y) for part in self.parts[1:]), self.parts[0](x, y))

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        each = [part.velocity(at, source) for part in self.parts]
        return sum(each[1:], each[0])

    def divergence(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
        each = [part.divergence(at, source) for part in self.parts]
        return sum(each[1:], each[0])

    def adapt(self, points: Points) -> "Sum":
        return Sum(tuple(part.adapt(points) for part in self.parts))

    def check(self, dimension: int) -> None:
        for part in self.parts:
            part.check(dimension)

    @property
    def rotation_invariant(self) -> bool:
        return all(part.rotation_invariant for part in self.parts)
