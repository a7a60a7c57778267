"""Symmetric operators that may be averaged, then factorized into metrics.

Curvature is linear: it is averaged over particles and decayed over minibatches. A metric (see `metrics`) is a
factorized positive definite matrix, Q = RᵀR, which whitens and solves. With two types nobody averages factors by
accident, and both keep the structure (diagonal, Kronecker, blocks).

Batches of operators are ordinary operators whose arrays carry a leading axis, used under `jax.vmap`.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.types import Matrix, Scalar, cast_like, check_positive
from .metrics import (
    AbstractMetric,
    BlocksMetric,
    DenseMetric,
    DiagonalMetric,
    FactorMetric,
    KroneckerMetric,
    StackMetric,
)

Operator = TypeVar("Operator", bound="AbstractOperator")
DiagonalShift: TypeAlias = Callable[["AbstractOperator"], Scalar]
"""The multiple of the identity that is added to an operator, as a function of that operator."""


class AbstractOperator(eqx.Module):
    """A symmetric matrix as data: average it, decay it, then factorize it."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The dimension d."""

    @abc.abstractmethod
    def as_matrix(self) -> Matrix:
        """The dense d×d matrix. For tests and small d."""

    @abc.abstractmethod
    def scale(self) -> Scalar:
        """Trace / d, the size that damping is relative to."""

    @abc.abstractmethod
    def metric(self, shift_of: DiagonalShift, symmetric: bool) -> AbstractMetric:
        """The metric Q + shift_of(Q) × I; block-diagonal operators shift every block B by `shift_of(B)`."""

    def average(self: Operator) -> Operator:
        """The mean over the leading axis of a batch of operators."""
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self)

    def blend(self: Operator, other: Operator, share: Any) -> Operator:
        """Share × self + (1 − share) × other: a step of a running average, or a half-averaged mixture."""

        def mix(old: Array, new: Array) -> Array:
            weight = cast_like(share, old)
            return weight * old + (1 - weight) * new

        return jax.tree.map(mix, self, other)

    def factorize(self, damping: Any, *, symmetric: bool = False) -> AbstractMetric:
        """The metric Q + damping × scale × I; a block-diagonal operator damps every block by the block's scale.

        Args:
            damping: positive, relative to `scale()`.
            symmetric: take the symmetric root R = Q^½ of Eq. (12). For a radial kernel any root gives the same
                velocity (rotations cancel) and the Cholesky factor is cheaper; around a graphical kernel it matters.
        """
        check_positive("damping", damping)

        def shift_of(operator: AbstractOperator) -> Scalar:
            scale = operator.scale()
            return cast_like(damping, scale) * jnp.where(scale == 0, jnp.ones_like(scale), jnp.abs(scale))

        return self.metric(shift_of, symmetric)


class Dense(AbstractOperator):
    """A symmetric d×d matrix."""

    matrix: Float[Array, "*batch d d"]

    @property
    def size(self) -> int:
        return self.matrix.shape[-1]

    def as_matrix(self) -> Matrix:
        return self.matrix

    def scale(self) -> Scalar:
        return jnp.trace(self.matrix) / self.size

    def metric(self, shift_of: DiagonalShift, symmetric: bool) -> DenseMetric:
        return DenseMetric.of(self.shifted(shift_of(self)), symmetric=symmetric)

    def shifted(self, shift: Scalar) -> Matrix:
        """The matrix plus a multiple of the identity."""
        return self.matrix + shift * jnp.eye(self.size, dtype=self.matrix.dtype)


class Diagonal(AbstractOperator):
    """A diagonal matrix, held as its d entries."""

    entries: Float[Array, "*batch d"]

    @property
    def size(self) -> int:
        return self.entries.shape[-1]

    def as_matrix(self) -> Matrix:
        return jnp.diag(self.entries)

    def scale(self) -> Scalar:
        return jnp.mean(self.entries)

    def metric(self, shift_of: DiagonalShift, symmetric: bool) -> DiagonalMetric:
        return DiagonalMetric(jnp.sqrt(self.entries + shift_of(self)))


class Kronecker(AbstractOperator):
    """A ⊗ B + shift × I, acting on the row-major vec of an a×b block of coordinates.

    Departs from linearity: the mean of Kronecker products is not the product of the mean factors. `average` and
    `blend` average the *factors*, the approximation of KFAC (Martens and Grosse, 2015). Damping follows them too: it
    is split over the factors in proportion to their scales. With a, b the scales of A and B, and δ the shift plus
    damping × scale, the metric is (A + √(δa/b) I) ⊗ (B + √(δb/a) I), which adds δ I and two cross terms.

    Args:
        left: A, for the output side of a layer `weight @ x`.
        right: B, for its input side.
        shift: a multiple of the identity, such as a prior's precision; `None` for none.
        bias: the last column of the block is a layer's bias, whose coordinates follow all those of its weights.
    """

    left: AbstractOperator
    right: AbstractOperator
    shift: Float[Array, "*batch"] | None = None
    bias: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    def as_matrix(self) -> Matrix:
        product = jnp.kron(self.left.as_matrix(), self.right.as_matrix())
        if self.bias:
            indices = np.arange(self.size).reshape(self.left.size, self.right.size)
            order = np.concatenate([indices[:, :-1].reshape(-1), indices[:, -1]])
            product = product[order][:, order]
        return product if self.shift is None else product + self.shift * jnp.eye(self.size, dtype=product.dtype)

    def scale(self) -> Scalar:
        product = self.left.scale() * self.right.scale()
        return product if self.shift is None else product + self.shift

    def metric(self, shift_of: DiagonalShift, symmetric: bool) -> KroneckerMetric:
        left, right = self.left.scale(), self.right.scale()
        # A factor of scale 0 has no proportion: damping is then split evenly.
        both = (left > 0) & (right > 0)
        ratio = jnp.sqrt(jnp.where(both, left, 1) / jnp.where(both, right, 1))
        root = jnp.sqrt(shift_of(self) if self.shift is None else shift_of(self) + self.shift)
        factors = _factor(self.left, root * ratio, symmetric), _factor(self.right, root / ratio, symmetric)
        return KroneckerMetric(*factors, self.bias)


class Blocks(AbstractOperator):
    """A block-diagonal matrix: one operator per consecutive range of coordinates.

    Every block is damped relative to its own scale: a layer of small curvature is not damped by the scale of a large
    one.
    """

    parts: tuple[AbstractOperator, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def as_matrix(self) -> Matrix:
        return jax.scipy.linalg.block_diag(*[part.as_matrix() for part in self.parts])

    def scale(self) -> Scalar:
        traces = jnp.stack([part.scale() * part.size for part in self.parts])
        return jnp.sum(traces) / self.size

    def metric(self, shift_of: DiagonalShift, symmetric: bool) -> BlocksMetric:
        return BlocksMetric(tuple(part.metric(shift_of, symmetric) for part in self.parts))


class Stack(AbstractOperator):
    """A block-diagonal matrix of many equal blocks, held as one batch of operators.

    Examples are the groups of a convolution, and the pairs of scale and offset of a normalisation. Every block is
    damped relative to its own scale.

    Args:
        parts: the blocks, as one batch: every array has a leading axis of `count`.
        count: the number of blocks.
        interleaved: coordinate j of block i is at index j × count + i. By default the blocks follow one another.
    """

    parts: AbstractOperator
    count: int = eqx.field(static=True)
    interleaved: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.count * self.parts.size

    def as_matrix(self) -> Matrix:
        each = jax.vmap(lambda part: part.as_matrix())(self.parts)
        matrix = jax.scipy.linalg.block_diag(*each)
        if not self.interleaved:
            return matrix
        order = np.arange(self.size).reshape(self.count, self.parts.size).T.reshape(-1)
        return matrix[order][:, order]

    def scale(self) -> Scalar:
        return jnp.mean(jax.vmap(lambda part: part.scale())(self.parts))

    def metric(self, shift_of: DiagonalShift, symmetric: bool) -> StackMetric:
        metrics = jax.vmap(lambda part: part.metric(shift_of, symmetric))(self.parts)
        return StackMetric(metrics, self.count, self.interleaved)


def _factor(operator: AbstractOperator, shift: Scalar, symmetric: bool) -> AbstractMetric:
    """The metric of a Kronecker factor plus a multiple of the identity; of a dense one it holds the inverse too."""
    if symmetric or not isinstance(operator, Dense):
        return operator.metric(lambda _: shift, symmetric)
    return FactorMetric.of(operator.shifted(shift))
