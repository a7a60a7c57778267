"""Metrics: positive definite matrices Q = RᵀR held by a root, with whatever structure the curvature had.

A metric acts on the last axis of its argument, so that many vectors go through one product of matrices. Batches of
metrics are ordinary metrics whose arrays carry a leading axis, used under `jax.vmap`. Those of Kronecker products and
blocks are in `block_metric`.
"""

import abc
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .types import Matrix, Scalar

Vectors: TypeAlias = Float[Array, "*many d"]
_SMALL = 128  # rows of a matrix that is inverted without LAPACK


def dot(a: Array, b: Array) -> Array:
    """The matrix product in the full precision of its dtype."""
    # Curvature spans many orders of magnitude, so products never run in reduced precision (TF32) unless asked for.
    return jnp.matmul(a, b, precision="highest")


class Bilinear(NamedTuple):
    """Vectors prepared for products uᵀQv: `u.left · v.right` for any two of them, without another use of Q."""

    left: Vectors
    right: Vectors
    product: Vectors
    """Q v."""


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
        form = self.bilinear(vector)
        return jnp.sum(form.left * form.right, axis=-1)

    def bilinear(self, vector: Vectors) -> Bilinear:
        """Prepare vectors for uᵀQv = (Ru)·(Rv), and compute Q v. The root R keeps small numbers accurate."""
        root = self.whiten(vector)
        return Bilinear(root, root, self.push_score(root))

    def blocks(self) -> "tuple[AbstractMetric, ...]":
        """The metrics of the diagonal blocks, one for each consecutive stretch of coordinates."""
        return (self,)

    def arrange(self, vector: Vectors) -> Vectors:
        """The coordinates in the order that `for_arranged` acts on."""
        return vector

    def restore(self, vector: Vectors) -> Vectors:
        """Undo `arrange`."""
        return vector

    def for_arranged(self) -> "AbstractMetric":
        """The same metric for coordinates in an order that needs no rearrangement of vectors in its maps."""
        return self

    def without_roots(self) -> "AbstractMetric":
        """A copy without the arrays that only the maps by R use; `solve` and `multiply` give the same."""
        return self


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
                dot(vectors * root[None, :], vectors.T),
                dot(vectors / root[None, :], vectors.T),
                jnp.sum(jnp.log(values)),
            )
        lower = jnp.linalg.cholesky(matrix)
        return cls(lower.T, _inverse_of_lower(lower).T, 2 * jnp.sum(jnp.log(jnp.diagonal(lower))))

    @property
    def size(self) -> int:
        return self.root.shape[-1]

    # The vector stands on the left: over many of them that is one product of matrices, and nothing to transpose.

    def whiten(self, vector: Vectors) -> Vectors:
        return dot(vector, self.root.T)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return dot(vector, self.inverse_root.T)

    def pull_score(self, score: Vectors) -> Vectors:
        return dot(score, self.inverse_root)

    def push_score(self, score: Vectors) -> Vectors:
        return dot(score, self.root)

    def logdet(self) -> Scalar:
        return self.log_determinant


def _inverse_of_lower(lower: Matrix) -> Matrix:
    """The inverse of a lower triangular matrix; of a small one row by row, except on a GPU.

    LAPACK's threaded solver takes milliseconds for any matrix on a busy CPU, because its threads wait for one another.
    """

    def solved(lower: Matrix) -> Matrix:
        return solve_triangular(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True)

    def substituted(lower: Matrix) -> Matrix:
        size = lower.shape[0]
        unit = jnp.eye(size, dtype=lower.dtype)
        # Row i is (e_i − Σ_{j<i} L_ij row j) / L_ii; rows from i on are still zero.
        diagonal = jnp.diagonal(lower)

        def fill(i: Array, rows: Matrix) -> Matrix:
            row = (unit[i] - dot(lower[i], rows)) / diagonal[i]
            return rows.at[i].set(row)

        return jax.lax.fori_loop(0, size, fill, 0 * lower)  # zeros that vary as the matrix does; NaN stays NaN

    if lower.shape[0] > _SMALL:
        return solved(lower)
    return jax.lax.platform_dependent(lower, cuda=solved, default=substituted)


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


def split_columns(array: Float[Array, "... d"], sizes: Sequence[int]) -> list[Array]:
    """Consecutive blocks of the last axis."""
    return jnp.split(array, list(accumulate(sizes))[:-1], axis=-1)
