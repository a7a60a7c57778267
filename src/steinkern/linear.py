"""Symmetric operators that may be averaged, and the metrics they factorise into.

Curvature is linear data: it is averaged over particles and decayed over minibatches. A metric is a factorised positive
definite matrix, Q = RᵀR, with which one whitens and solves. Keeping the two apart makes it impossible to average
factors by accident, and lets structure (diagonal, Kronecker, blocks) live through both.

Batches of operators or metrics are ordinary operators whose arrays carry a leading axis, used under `jax.vmap`.
"""

import abc
from itertools import accumulate
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ._types import Matrix, Scalar, Vector, check_positive, like


def _dot(a: Array, b: Array) -> Array:
    # Curvature spans many orders of magnitude, so products never run in reduced precision (TF32) unless asked for.
    return jnp.matmul(a, b, precision="highest")


class AbstractMetric(eqx.Module):
    """A positive definite matrix Q = RᵀR, held as a root R that is cheap to apply and to invert.

    `whiten` is the linear map of Wang et al. (2019), Eq. (12): in u = Rx a Gaussian of precision Q is standard normal.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The dimension d."""

    @abc.abstractmethod
    def whiten(self, vector: Vector) -> Vector:
        """R u."""

    @abc.abstractmethod
    def unwhiten(self, vector: Vector) -> Vector:
        """R⁻¹ v."""

    @abc.abstractmethod
    def pull_score(self, score: Vector) -> Vector:
        """R⁻ᵀ s: the score of the whitened variable."""

    @abc.abstractmethod
    def push_score(self, score: Vector) -> Vector:
        """Rᵀ s: the score of x, from that of the whitened variable."""

    @abc.abstractmethod
    def logdet(self) -> Scalar:
        """Log det Q."""

    def solve(self, vector: Vector) -> Vector:
        """Q⁻¹ v."""
        return self.unwhiten(self.pull_score(vector))

    def multiply(self, vector: Vector) -> Vector:
        """Q v."""
        return self.push_score(self.whiten(vector))

    def quadratic(self, vector: Vector) -> Scalar:
        """uᵀQu."""
        return jnp.sum(self.whiten(vector) ** 2)


Operator = TypeVar("Operator", bound="AbstractOperator")


class AbstractOperator(eqx.Module):
    """A symmetric matrix as data: average it, decay it, then factorise it."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The dimension d."""

    @abc.abstractmethod
    def as_matrix(self) -> Matrix:
        """The dense d×d matrix. For tests and small d."""

    @abc.abstractmethod
    def average(self: Operator) -> Operator:
        """The mean over the leading axis of a batch of operators."""

    @abc.abstractmethod
    def blend(self: Operator, other: Operator, share: Any) -> Operator:
        """Share × self + (1 − share) × other: a step of a running average, or a half-averaged mixture."""

    @abc.abstractmethod
    def scale(self) -> Scalar:
        """Trace / d, the size that damping is relative to."""

    @abc.abstractmethod
    def factorise(self, damping: Any, *, symmetric: bool = False) -> AbstractMetric:
        """The metric Q + damping × scale × I.

        Args:
            damping: positive, relative to `scale()`.
            symmetric: take the symmetric root R = Q^½ of Eq. (12). For a radial kernel any root gives the same
                velocity (rotations cancel) and the Cholesky factor is cheaper; around a graphical kernel it matters.
        """


class DenseMetric(AbstractMetric):
    """Q = RᵀR by an explicit root and its inverse, so that every use is a matrix product."""

    root: Float[Array, "d d"]
    inverse_root: Float[Array, "d d"]
    log_determinant: Scalar

    @classmethod
    def of(cls, matrix: Matrix, *, symmetric: bool = False) -> "DenseMetric":
        """The metric of a matrix known to be positive definite; a matrix that is not gives NaN."""
        if symmetric:
            values, vectors = jnp.linalg.eigh(matrix)
            root = jnp.sqrt(values)
            return cls(
                _dot(vectors * root[None, :], vectors.T),
                _dot(vectors / root[None, :], vectors.T),
                jnp.sum(jnp.log(values)),
            )
        lower = jnp.linalg.cholesky(matrix)
        identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        inverse = solve_triangular(lower, identity, lower=True)
        return cls(lower.T, inverse.T, 2 * jnp.sum(jnp.log(jnp.diagonal(lower))))

    @property
    def size(self) -> int:
        return self.root.shape[-1]

    def whiten(self, vector: Vector) -> Vector:
        return _dot(self.root, vector)

    def unwhiten(self, vector: Vector) -> Vector:
        return _dot(self.inverse_root, vector)

    def pull_score(self, score: Vector) -> Vector:
        return _dot(self.inverse_root.T, score)

    def push_score(self, score: Vector) -> Vector:
        return _dot(self.root.T, score)

    def logdet(self) -> Scalar:
        return self.log_determinant


class DiagonalMetric(AbstractMetric):
    """Q = diag(root²)."""

    root: Float[Array, " d"]

    @property
    def size(self) -> int:
        return self.root.shape[-1]

    def whiten(self, vector: Vector) -> Vector:
        return self.root * vector

    def unwhiten(self, vector: Vector) -> Vector:
        return vector / self.root

    def pull_score(self, score: Vector) -> Vector:
        return score / self.root

    def push_score(self, score: Vector) -> Vector:
        return self.root * score

    def logdet(self) -> Scalar:
        return 2 * jnp.sum(jnp.log(self.root))


class KroneckerMetric(AbstractMetric):
    """Q = A ⊗ B on the row-major vec of a block V: (A ⊗ B) vec(V) = vec(A V Bᵀ), so nothing of size d² is formed."""

    left: DenseMetric
    right: DenseMetric

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    def _apply(self, left: Float[Array, "a a"], right: Float[Array, "b b"], vector: Vector) -> Vector:
        block = vector.reshape(self.left.size, self.right.size)
        return _dot(_dot(left, block), right.T).reshape(-1)

    def whiten(self, vector: Vector) -> Vector:
        return self._apply(self.left.root, self.right.root, vector)

    def unwhiten(self, vector: Vector) -> Vector:
        return self._apply(self.left.inverse_root, self.right.inverse_root, vector)

    def pull_score(self, score: Vector) -> Vector:
        return self._apply(self.left.inverse_root.T, self.right.inverse_root.T, score)

    def push_score(self, score: Vector) -> Vector:
        return self._apply(self.left.root.T, self.right.root.T, score)

    def logdet(self) -> Scalar:
        return self.right.size * self.left.logdet() + self.left.size * self.right.logdet()


class BlocksMetric(AbstractMetric):
    """A block-diagonal Q: one metric for each consecutive stretch of coordinates."""

    parts: tuple[AbstractMetric, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def whiten(self, vector: Vector) -> Vector:
        return jnp.concatenate([part.whiten(piece) for part, piece in self._pieces(vector)])

    def unwhiten(self, vector: Vector) -> Vector:
        return jnp.concatenate([part.unwhiten(piece) for part, piece in self._pieces(vector)])

    def pull_score(self, score: Vector) -> Vector:
        return jnp.concatenate([part.pull_score(piece) for part, piece in self._pieces(score)])

    def push_score(self, score: Vector) -> Vector:
        return jnp.concatenate([part.push_score(piece) for part, piece in self._pieces(score)])

    def logdet(self) -> Scalar:
        return jnp.sum(jnp.stack([part.logdet() for part in self.parts]))

    def _pieces(self, vector: Vector) -> list[tuple[AbstractMetric, Array]]:
        return list(zip(self.parts, _split(vector, [part.size for part in self.parts]), strict=True))


class Dense(AbstractOperator):
    """A symmetric d×d matrix."""

    matrix: Float[Array, "*batch d d"]

    @property
    def size(self) -> int:
        return self.matrix.shape[-1]

    def as_matrix(self) -> Matrix:
        return self.matrix

    def average(self) -> "Dense":
        return Dense(jnp.mean(self.matrix, axis=0))

    def blend(self, other: "Dense", share: Any) -> "Dense":
        return Dense(_mix(self.matrix, other.matrix, share))

    def scale(self) -> Scalar:
        return jnp.trace(self.matrix) / self.size

    def factorise(self, damping: Any, *, symmetric: bool = False) -> DenseMetric:
        check_positive("damping", damping)
        identity = jnp.eye(self.size, dtype=self.matrix.dtype)
        added = like(damping, self.matrix) * _positive_scale(self.scale())
        return DenseMetric.of(self.matrix + added * identity, symmetric=symmetric)


class Diagonal(AbstractOperator):
    """A diagonal matrix, held as its d entries."""

    entries: Float[Array, "*batch d"]

    @property
    def size(self) -> int:
        return self.entries.shape[-1]

    def as_matrix(self) -> Matrix:
        return jnp.diag(self.entries)

    def average(self) -> "Diagonal":
        return Diagonal(jnp.mean(self.entries, axis=0))

    def blend(self, other: "Diagonal", share: Any) -> "Diagonal":
        return Diagonal(_mix(self.entries, other.entries, share))

    def scale(self) -> Scalar:
        return jnp.mean(self.entries)

    def factorise(self, damping: Any, *, symmetric: bool = False) -> DiagonalMetric:
        check_positive("damping", damping)
        return DiagonalMetric(jnp.sqrt(self.entries + like(damping, self.entries) * _positive_scale(self.scale())))


class Kronecker(AbstractOperator):
    """A ⊗ B, acting on the row-major vec of an a×b block of coordinates.

    Departs from linearity: the mean of Kronecker products is not the product of the mean factors. `average` and
    `blend` average the *factors*, which is the approximation of KFAC (Martens and Grosse, 2015). Damping is theirs
    too, split over the factors in proportion to their scales: with a, b the scales of A and B and λ the damping,
    (A + √λ a I) ⊗ (B + √λ b I), which adds λ × scale × I and two cross terms.
    """

    left: Dense
    right: Dense

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    def as_matrix(self) -> Matrix:
        return jnp.kron(self.left.matrix, self.right.matrix)

    def average(self) -> "Kronecker":
        return Kronecker(self.left.average(), self.right.average())

    def blend(self, other: "Kronecker", share: Any) -> "Kronecker":
        return Kronecker(self.left.blend(other.left, share), self.right.blend(other.right, share))

    def scale(self) -> Scalar:
        return self.left.scale() * self.right.scale()

    def factorise(self, damping: Any, *, symmetric: bool = False) -> KroneckerMetric:
        check_positive("damping", damping)
        each = jnp.sqrt(like(damping, self.left.matrix))
        return KroneckerMetric(
            self.left.factorise(each, symmetric=symmetric), self.right.factorise(each, symmetric=symmetric)
        )


class Blocks(AbstractOperator):
    """A block-diagonal matrix: one operator for each consecutive stretch of coordinates.

    Every block is damped relative to its own scale, so that a layer of large curvature does not drown a small one.
    """

    parts: tuple[AbstractOperator, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def as_matrix(self) -> Matrix:
        return jax.scipy.linalg.block_diag(*[part.as_matrix() for part in self.parts])

    def average(self) -> "Blocks":
        return Blocks(tuple(part.average() for part in self.parts))

    def blend(self, other: "Blocks", share: Any) -> "Blocks":
        return Blocks(tuple(a.blend(b, share) for a, b in zip(self.parts, other.parts, strict=True)))

    def scale(self) -> Scalar:
        traces = jnp.stack([part.scale() * part.size for part in self.parts])
        return jnp.sum(traces) / self.size

    def factorise(self, damping: Any, *, symmetric: bool = False) -> BlocksMetric:
        return BlocksMetric(tuple(part.factorise(damping, symmetric=symmetric) for part in self.parts))


def _positive_scale(scale: Scalar) -> Scalar:
    """The scale that damping is relative to; 1 for no curvature at all, where there is nothing to be relative to."""
    return jnp.where(scale == 0, jnp.ones_like(scale), jnp.abs(scale))


def _mix(old: Array, new: Array, share: Any) -> Array:
    share = like(share, old)
    return share * old + (1 - share) * new


def _split(vector: Vector, sizes: list[int]) -> list[Array]:
    return jnp.split(vector, list(accumulate(sizes))[:-1])
