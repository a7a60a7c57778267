"""Metrics: positive definite matrices Q = RᵀR held by a root, with whatever structure the curvature had.

Batches of metrics are ordinary metrics whose arrays carry a leading axis, used under `jax.vmap`.
"""

import abc
from collections.abc import Sequence
from itertools import accumulate

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .types import Matrix, Scalar, Vector


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

    # The vector stands on the left: over many of them that is one product of matrices, and nothing to transpose.

    def whiten(self, vector: Vector) -> Vector:
        return _dot(vector, self.root.T)

    def unwhiten(self, vector: Vector) -> Vector:
        return _dot(vector, self.inverse_root.T)

    def pull_score(self, score: Vector) -> Vector:
        return _dot(score, self.inverse_root)

    def push_score(self, score: Vector) -> Vector:
        return _dot(score, self.root)

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
    """Q = A ⊗ B on the row-major vec of a block V: (A ⊗ B) vec(V) = vec(A V Bᵀ), so nothing of size d² is formed.

    With `bias` the last column of V is a layer's bias, whose coordinates follow all those of its weights.
    """

    left: DenseMetric
    right: DenseMetric
    bias: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    def _apply(self, left: Float[Array, "a a"], right: Float[Array, "b b"], vector: Vector) -> Vector:
        rows, columns = self.left.size, self.right.size
        if not self.bias:
            return _dot(_dot(left, vector.reshape(rows, columns)), right.T).reshape(-1)
        weights, bias = vector[: rows * (columns - 1)].reshape(rows, columns - 1), vector[rows * (columns - 1) :]
        moved = _dot(_dot(left, weights), right[:, :-1].T) + _dot(left, bias)[:, None] * right[:, -1][None, :]
        return jnp.concatenate([moved[:, :-1].reshape(-1), moved[:, -1]])

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
        return list(zip(self.parts, split_columns(vector, [part.size for part in self.parts]), strict=True))


def split_columns(array: Float[Array, "... d"], sizes: Sequence[int]) -> list[Array]:
    """Consecutive blocks of the last axis."""
    return jnp.split(array, list(accumulate(sizes))[:-1], axis=-1)
