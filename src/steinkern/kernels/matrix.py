"""Matrix-valued kernels: their definitions K(x, y), and fast velocities that never form K.

`PerBlock`, `Tilted` and `Transformed` change the variables or weights of another kernel's velocity, as do those in
`preconditioned` and `mixture`. `Isotropic` computes by `radial_velocity`.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.particles import Scored
from ..core.reprs import OneLine
from ..core.types import (
    Matrix,
    Points,
    Scalar,
    Vector,
    as_number,
    cast_like,
    check_callable,
    check_choice,
    check_count,
    is_concrete,
    is_real_number,
)
from ..linalg.metrics import split_columns
from . import reference
from .radial import BACKENDS, PRECISIONS, Backend, Precision, radial_divergence, radial_velocity
from .scalar import AbstractScalarKernel

MatrixKernel = TypeVar("MatrixKernel", bound="AbstractMatrixKernel")


class AbstractMatrixKernel(OneLine):
    """A positive definite kernel with values in the d×d matrices, K(x, y) = K(y, x)ᵀ.

    To add a kernel, write `__call__` from the paper and, where a faster form exists, `velocity`. Then add a line to
    `KERNEL_CASES` in `tests/helpers/cases.py`, whose tests compare the two.
    """

    @abc.abstractmethod
    def __call__(self, x: Vector, y: Vector) -> Matrix:
        """The matrix K(x, y)."""

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        """The Stein velocity Σ_j w_j [K(x, y_j) s_j + K(x, y_j)∇], Eq. (9), at every row x of `at`."""
        return reference.stein_velocity(self, at, source)

    def divergence(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
        """∇·φ of the velocity φ at every row of `at`; the kernel Stein discrepancy is the mean of s·φ + ∇·φ."""
        return reference.divergence(lambda points: self.velocity(points, source), at)

    def adapt(self: MatrixKernel, points: Points) -> MatrixKernel:
        """A copy with the bandwidth rules evaluated at `points`; the kernel itself where it has none."""
        return self

    def check(self, dimension: int) -> None:
        """Raise where the kernel does not fit particles of this dimension; called before a run."""
        return None

    @property
    def rotation_invariant(self) -> bool:
        """Whether K(Ux, Uy) = U K(x, y) Uᵀ for every rotation U: then any root R of the metric will do in Eq. (12)."""
        return False


class Isotropic(AbstractMatrixKernel):
    """K(x, y) = k(‖x − y‖²) I: vanilla SVGD (Liu and Wang, 2016), Eq. (5).

    A scalar kernel is converted to this one wherever a kernel is expected. Written out, it also sets the precision:

    >>> sampler = svgd(Isotropic(RBF(), precision="fast"))

    Args:
        scalar: k.
        precision: of the velocity of many float32 particles on an NVIDIA GPU: "float32" to about 1e-5, "fast" to 3e-4,
            "fastest" to 2e-2, relative to the velocity's largest entry and away from equilibrium. It has no effect on
            other devices, in float64 and for few particles.
        backend: "auto" (see `steinkern.kernels.radial` for its rule), "dense", "tiled" or "gpu".
    """

    scalar: AbstractScalarKernel
    precision: Precision = eqx.field(default="float32", static=True)
    backend: Backend = eqx.field(default="auto", static=True)

    def __check_init__(self) -> None:
        check_scalar_kernel("scalar", self.scalar)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("backend", self.backend, BACKENDS)

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        return self.scalar.profile(jnp.sum((x - y) ** 2))[0] * jnp.eye(x.shape[0], dtype=x.dtype)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        return radial_velocity(self.scalar, at, source, precision=self.precision, backend=self.backend)

    def divergence(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
        return radial_divergence(self.scalar, at, source, backend=self.backend)

    def adapt(self, points: Points) -> "Isotropic":
        return Isotropic(self.scalar.adapt(points), self.precision, self.backend)

    @property
    def rotation_invariant(self) -> bool:
        return True


class Linear(AbstractMatrixKernel):
    """K(x, y) = (offset + xᵀy) I, which matches the mean and covariance of a Gaussian exactly (Liu and Wang, 2018)."""

    offset: Any = eqx.field(default=1.0, converter=as_number)

    def __check_init__(self) -> None:
        if is_concrete(self.offset) and not (is_real_number(self.offset) and 0 <= self.offset < float("inf")):
            raise ValueError(f"`offset` must be a number of at least 0, got {self.offset!r}.")

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        return (cast_like(self.offset, x) + jnp.vdot(x, y)) * jnp.eye(x.shape[0], dtype=x.dtype)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        scores = source.weights[:, None] * source.scores
        drive = jnp.matmul(at, jnp.matmul(source.points.T, scores, precision="highest"), precision="highest")
        constant = cast_like(self.offset, at) * jnp.sum(scores, axis=0, keepdims=True)
        return drive + constant + jnp.sum(source.weights) * at

    @property
    def rotation_invariant(self) -> bool:
        return True


class PerBlock(AbstractMatrixKernel):
    """K(x, y) = blockdiag[K_b(x_b, y_b)]: every consecutive block of coordinates has its own kernel.

    In many dimensions the distances over all coordinates are nearly equal for all pairs. A kernel for each layer of a
    network, as in the released code of Wang et al. (2019), depends on that layer's distances only.

    Args:
        parts: the kernels, in the order of their blocks.
        sizes: the number of coordinates of every block.
    """

    parts: tuple[AbstractMatrixKernel, ...] = eqx.field(
        converter=lambda parts: tuple(as_matrix_kernel(part) for part in parts)
    )
    sizes: tuple[int, ...] = eqx.field(converter=tuple, static=True)

    def __check_init__(self) -> None:
        for size in self.sizes:
            check_count("sizes", size)
        if len(self.parts) != len(self.sizes):
            raise ValueError(f"`sizes` must have one entry per kernel, {len(self.parts)}, got {self.sizes}.")

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        pieces = zip(self.parts, split_columns(x, self.sizes), split_columns(y, self.sizes), strict=True)
        return jax.scipy.linalg.block_diag(*[part(a, b) for part, a, b in pieces])

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        each = [part.velocity(rows, local) for part, rows, local in self._local(at, source)]
        return jnp.concatenate(each, axis=1)

    def divergence(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, " m"]:
        each = [part.divergence(rows, local) for part, rows, local in self._local(at, source)]
        return jnp.sum(jnp.stack(each), axis=0)

    def adapt(self, points: Points) -> "PerBlock":
        pieces = zip(self.parts, split_columns(points, self.sizes), strict=True)
        return PerBlock(tuple(part.adapt(columns) for part, columns in pieces), self.sizes)

    def check(self, dimension: int) -> None:
        if dimension != sum(self.sizes):
            raise ValueError(f"`sizes` must add up to the {dimension} coordinates of the particles, got {self.sizes}.")
        for part, size in zip(self.parts, self.sizes, strict=True):
            part.check(size)

    def _local(
        self, at: Float[Array, "m d"], source: Scored
    ) -> Iterator[tuple[AbstractMatrixKernel, Float[Array, "m b"], Scored]]:
        points, scores = split_columns(source.points, self.sizes), split_columns(source.scores, self.sizes)
        rows = points if at is source.points else split_columns(at, self.sizes)
        for part, x, y, s in zip(self.parts, rows, points, scores, strict=True):
            yield part, x, Scored(y, s, source.weights)


class Tilted(AbstractMatrixKernel):
    """K(x, y) = w(x) w(y) K0(x, y) with a positive weight w = exp(log_weight).

    Tilting the sources by w multiplies their weights and adds ∇log w to their scores. With w = ρ/p it is gradient-free
    SVGD (Han and Liu, 2018): s + ∇log w = ∇log ρ, so the target's score cancels (see `GradientFreeSVGD`).
    """

    base: AbstractMatrixKernel = eqx.field(converter=lambda kernel: as_matrix_kernel(kernel))
    log_weight: Callable[[Vector], Scalar]

    def __check_init__(self) -> None:
        check_callable("log_weight", self.log_weight, "a function of one point, the logarithm of w")

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        return jnp.exp(self.log_weight(x) + self.log_weight(y)) * self.base(x, y)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        log_weights, gradients = jax.vmap(jax.value_and_grad(self.log_weight))(source.points)
        moved = tilted_velocity(self.base, at, source, log_weights, gradients)
        return jnp.exp(jax.vmap(self.log_weight)(at))[:, None] * moved

    def adapt(self, points: Points) -> "Tilted":
        return Tilted(self.base.adapt(points), self.log_weight)

    def check(self, dimension: int) -> None:
        self.base.check(dimension)


def tilted_velocity(
    base: AbstractMatrixKernel,
    at: Float[Array, "m d"],
    source: Scored,
    log_weights: Float[Array, " n"],
    gradients: Float[Array, "n d"],
) -> Float[Array, "m d"]:
    """The velocity of the asymmetric kernel K0(x, y) w(y), which is that of K0 on sources tilted by w."""
    return base.velocity(at, Scored(source.points, source.scores + gradients, source.weights * jnp.exp(log_weights)))


class Transformed(AbstractMatrixKernel):
    """K(x, y) = ∇t(x)⁻¹ K0(t(x), t(y)) ∇t(y)⁻ᵀ for a smooth one-to-one map t: the change-of-variables theorem.

    SVGD on p with this kernel is SVGD with K0 on the law of t(x), in the limit of small steps. The velocity is that of
    K0 at the points t(x) with scores ∇t⁻ᵀ(s − ∇log|det ∇t|), mapped back by ∇t⁻¹.

    Args:
        base: K0.
        transform: t, from (d,) to (d,), twice differentiable; its inverse is not needed.
    """

    base: AbstractMatrixKernel = eqx.field(converter=lambda kernel: as_matrix_kernel(kernel))
    transform: Callable[[Vector], Vector]

    def __check_init__(self) -> None:
        check_callable("transform", self.transform, "a one-to-one map from (d,) to (d,)")

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        inner = self.base(self.transform(x), self.transform(y))
        left = jnp.linalg.solve(jax.jacfwd(self.transform)(x), inner)
        return jnp.linalg.solve(jax.jacfwd(self.transform)(y), left.T).T

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        def pull(point: Vector, score: Vector) -> Vector:
            jacobian = jax.jacfwd(self.transform)(point)
            return jnp.linalg.solve(jacobian.T, score - jax.grad(self._log_determinant)(point))

        scores = jax.vmap(pull)(source.points, source.scores)
        mapped = Scored(jax.vmap(self.transform)(source.points), scores, source.weights)
        moved = self.base.velocity(jax.vmap(self.transform)(at), mapped)
        return jax.vmap(jnp.linalg.solve)(jax.vmap(jax.jacfwd(self.transform))(at), moved)

    def adapt(self, points: Points) -> "Transformed":
        return Transformed(self.base.adapt(jax.vmap(self.transform)(points)), self.transform)

    def check(self, dimension: int) -> None:
        self.base.check(dimension)

    def _log_determinant(self, point: Vector) -> Scalar:
        return jnp.linalg.slogdet(jax.jacfwd(self.transform)(point))[1]


class UserKernel(AbstractMatrixKernel):
    """A kernel from a function K(x, y) with a d×d result, by automatic differentiation of the definition.

    The function must be positive definite and differentiable with K(x, y) = K(y, x)ᵀ, which is not checked. A step
    costs n² d³, so this is for small problems and experiments.
    """

    function: Callable[[Vector, Vector], Matrix]

    def __check_init__(self) -> None:
        check_callable("function", self.function, "a function K(x, y) with a d×d result")

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        value = self.function(x, y)
        expected = (x.shape[0], x.shape[0])
        if jnp.shape(value) != expected:
            raise ValueError(f"`kernel` must return a d×d matrix, here {expected}, got shape {jnp.shape(value)}.")
        return value


def check_scalar_kernel(name: str, kernel: Any) -> None:
    """Raise unless `kernel` is a radial scalar kernel."""
    if not isinstance(kernel, AbstractScalarKernel):
        raise ValueError(f"`{name}` must be a radial scalar kernel such as `RBF()` or `IMQ()`, got {kernel!r}.")


def as_matrix_kernel(kernel: Any) -> AbstractMatrixKernel:
    """Convert to a matrix kernel: a scalar kernel to `Isotropic`, a function to `UserKernel`."""
    if isinstance(kernel, AbstractMatrixKernel):
        return kernel
    if isinstance(kernel, AbstractScalarKernel):
        return Isotropic(kernel)
    if callable(kernel) and not isinstance(kernel, type):
        return UserKernel(kernel)
    raise ValueError(
        f"`kernel` must be a kernel such as `RBF()` or `Graphical(...)`, or a function K(x, y), got {kernel!r}."
    )
