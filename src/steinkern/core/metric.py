"""Metrics: positive definite matrices Q = RᵀR held by a root, with whatever structure the curvature had.

A metric acts on the last axis of its argument, so that many vectors go through one product of matrices. Batches of
metrics are ordinary metrics whose arrays carry a leading axis, used under `jax.vmap`.
"""

import abc
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .types import Matrix, Scalar

Vectors: TypeAlias = Float[Array, "*many d"]
_Map: TypeAlias = Callable[["AbstractMetric", Array], Array]


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
    def whiten(self, vector: Vectors) -> Vectors:
        """R u."""

    @abc.abstractmethod
    def unwhiten(self, vector: Vectors) -> Vectors:
        """R⁻¹ v."""

    @abc.abstractmethod
    def pull_score(self, score: Vectors) -> Vectors:
        """R⁻ᵀ s: the score of the whitened variable."""

    @abc.abstractmethod
    def push_score(self, score: Vectors) -> Vectors:
        """Rᵀ s: the score of x, from that of the whitened variable."""

    @abc.abstractmethod
    def logdet(self) -> Scalar:
        """Log det Q."""

    def solve(self, vector: Vectors) -> Vectors:
        """Q⁻¹ v."""
        return self.unwhiten(self.pull_score(vector))

    def multiply(self, vector: Vectors) -> Vectors:
        """Q v."""
        return self.push_score(self.whiten(vector))

    def quadratic(self, vector: Vectors) -> Float[Array, "*many"]:
        """uᵀQu."""
        return jnp.sum(self.whiten(vector) ** 2, axis=-1)


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

    def whiten(self, vector: Vectors) -> Vectors:
        return _dot(vector, self.root.T)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return _dot(vector, self.inverse_root.T)

    def pull_score(self, score: Vectors) -> Vectors:
        return _dot(score, self.inverse_root)

    def push_score(self, score: Vectors) -> Vectors:
        return _dot(score, self.root)

    def logdet(self) -> Scalar:
        return self.log_determinant


class FactorMetric(DenseMetric):
    """A factor of a Kronecker product. It keeps Q and Q⁻¹ too, so that many vectors go through one product each."""

    matrix: Float[Array, "d d"]
    inverse: Float[Array, "d d"]

    @classmethod
    def keeping(cls, metric: DenseMetric) -> "FactorMetric":
        """The same metric with Q and Q⁻¹."""
        root, inverse_root = metric.root, metric.inverse_root
        both = _dot(root.T, root), _dot(inverse_root, inverse_root.T)
        return cls(root, inverse_root, metric.log_determinant, *both)

    def solve(self, vector: Vectors) -> Vectors:
        return _dot(vector, self.inverse)

    def multiply(self, vector: Vectors) -> Vectors:
        return _dot(vector, self.matrix)


class DiagonalMetric(AbstractMetric):
    """Q = diag(root²)."""

    root: Float[Array, " d"]

    @property
    def size(self) -> int:
        return self.root.shape[-1]

    def whiten(self, vector: Vectors) -> Vectors:
        return self._over(vector) * vector

    def unwhiten(self, vector: Vectors) -> Vectors:
        return vector / self._over(vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return score / self._over(score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._over(score) * score

    def logdet(self) -> Scalar:
        return 2 * jnp.sum(jnp.log(self.root))

    def _over(self, vector: Vectors) -> Array:
        """The root with an axis for each of the vector's, of which all but the last have length 1."""
        return self.root.reshape((1,) * (vector.ndim - 1) + self.root.shape)


class KroneckerMetric(AbstractMetric):
    """Q = A ⊗ B on the row-major vec of a block V: (A ⊗ B) vec(V) = vec(A V Bᵀ), so nothing of size d² is formed.

    With `bias` the last column of V is a layer's bias, whose coordinates follow all those of its weights.
    """

    left: AbstractMetric
    right: AbstractMetric
    bias: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    def whiten(self, vector: Vectors) -> Vectors:
        return self._on_both_sides(lambda factor, rows: factor.whiten(rows), vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._on_both_sides(lambda factor, rows: factor.unwhiten(rows), vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._on_both_sides(lambda factor, rows: factor.pull_score(rows), score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._on_both_sides(lambda factor, rows: factor.push_score(rows), score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._on_both_sides(lambda factor, rows: factor.solve(rows), vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._on_both_sides(lambda factor, rows: factor.multiply(rows), vector)

    def logdet(self) -> Scalar:
        return self.right.size * self.left.logdet() + self.left.size * self.right.logdet()

    def _on_both_sides(self, apply: _Map, vector: Vectors) -> Vectors:
        """V with the right factor applied to its rows and the left one to its columns."""
        many, rows, columns = vector.shape[:-1], self.left.size, self.right.size
        if self.bias:
            weights, bias = vector[..., : rows * (columns - 1)], vector[..., rows * (columns - 1) :]
            block = jnp.concatenate([weights.reshape(*many, rows, columns - 1), bias[..., None]], axis=-1)
        else:
            block = vector.reshape(*many, rows, columns)
        moved = apply(self.right, block)
        moved = jnp.swapaxes(apply(self.left, jnp.swapaxes(moved, -1, -2)), -1, -2)
        if not self.bias:
            return moved.reshape(vector.shape)
        weights = moved[..., :-1].reshape(*many, rows * (columns - 1))
        return jnp.concatenate([weights, moved[..., -1]], axis=-1)


class BlocksMetric(AbstractMetric):
    """A block-diagonal Q: one metric for each consecutive stretch of coordinates."""

    parts: tuple[AbstractMetric, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def whiten(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.whiten(piece), vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.unwhiten(piece), vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.pull_score(piece), score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.push_score(piece), score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.solve(piece), vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.multiply(piece), vector)

    def logdet(self) -> Scalar:
        return jnp.sum(jnp.stack([part.logdet() for part in self.parts]))

    def _on_each(self, apply: _Map, vector: Vectors) -> Vectors:
        pieces = split_columns(vector, [part.size for part in self.parts])
        return jnp.concatenate([apply(part, piece) for part, piece in zip(self.parts, pieces, strict=True)], axis=-1)


class StackMetric(AbstractMetric):
    """A block-diagonal Q of many equal blocks, held as one batch of metrics (see `operators.Stack`)."""

    parts: AbstractMetric
    count: int = eqx.field(static=True)
    interleaved: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.count * self.parts.size

    def whiten(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.whiten(piece), vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.unwhiten(piece), vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.pull_score(piece), score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.push_score(piece), score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.solve(piece), vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._on_each(lambda part, piece: part.multiply(piece), vector)

    def logdet(self) -> Scalar:
        return jnp.sum(jax.vmap(lambda part: part.logdet())(self.parts))

    def _on_each(self, apply: _Map, vector: Vectors) -> Vectors:
        shape = (self.parts.size, self.count) if self.interleaved else (self.count, self.parts.size)
        block = vector.reshape(*vector.shape[:-1], *shape)
        block = jnp.swapaxes(block, -1, -2) if self.interleaved else block
        moved = jax.vmap(apply, in_axes=(0, -2), out_axes=-2)(self.parts, block)
        moved = jnp.swapaxes(moved, -1, -2) if self.interleaved else moved
        return moved.reshape(vector.shape)


def split_columns(array: Float[Array, "... d"], sizes: Sequence[int]) -> list[Array]:
    """Consecutive blocks of the last axis."""
    return jnp.split(array, list(accumulate(sizes))[:-1], axis=-1)
