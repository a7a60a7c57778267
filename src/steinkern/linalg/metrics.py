"""Metrics: positive definite matrices Q = RᵀR held by a root, with whatever structure the curvature had.

A metric acts on the last axis of its argument, so that many vectors go through one product of matrices. Batches of
metrics are ordinary metrics whose arrays carry a leading axis, used under `jax.vmap`.
"""

import abc
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ..core._xla import on_gpu
from ..core.types import Matrix, Scalar

Vectors: TypeAlias = Float[Array, "*many d"]
_MatrixMap: TypeAlias = Literal["solve", "multiply"]
"""The maps for which a `FactorMetric` holds a matrix."""
_MAX_ENTRIES = 2**25
"""The largest array that a batch of metrics makes of shared vectors; beyond it memory bounds the speed."""


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
        """The metrics of the diagonal blocks, one per consecutive range of coordinates."""
        return (self,)

    def arrange(self, vector: Vectors) -> Vectors:
        """Vectors with the bias of each layer in its rows: the order of coordinates in which `for_arranged` acts."""
        return vector

    def restore(self, vector: Vectors) -> Vectors:
        """Undo `arrange`."""
        return vector

    def for_arranged(self) -> "AbstractMetric":
        """The same metric for vectors in the order of `arrange`, so that many products share one rearrangement."""
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
        inverse = solve_triangular(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True)
        return cls(lower.T, inverse.T, 2 * jnp.sum(jnp.log(jnp.diagonal(lower))))

    @property
    def size(self) -> int:
        return self.root.shape[-1]

    # Vectors are rows on the left: many of them are one matrix product, without a transpose.

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


class DiagonalMetric(AbstractMetric):
    """Q = diag(root²)."""

    root: Float[Array, " d"]

    @property
    def size(self) -> int:
        return self.root.shape[-1]

    def whiten(self, vector: Vectors) -> Vectors:
        return self._root_for(vector) * vector

    def unwhiten(self, vector: Vectors) -> Vectors:
        return vector / self._root_for(vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return score / self._root_for(score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._root_for(score) * score

    def logdet(self) -> Scalar:
        return 2 * jnp.sum(jnp.log(self.root))

    def _root_for(self, vector: Vectors) -> Array:
        """The root with the rank of `vector`: no rank promotion, which JAX can be told to refuse."""
        return self.root.reshape((1,) * (vector.ndim - 1) + self.root.shape)


class FactorMetric(DenseMetric):
    """A factor of a Kronecker product, which holds Q and Q⁻¹ too: `multiply` and `solve` are one product each."""

    matrix: Float[Array, "d d"]
    inverse: Float[Array, "d d"]

    @classmethod
    def of(cls, matrix: Matrix, *, symmetric: bool = False) -> "FactorMetric":
        dense = DenseMetric.of(matrix, symmetric=symmetric)
        inverse = dot(dense.inverse_root, dense.inverse_root.T)
        return cls(dense.root, dense.inverse_root, dense.log_determinant, matrix, inverse)

    def solve(self, vector: Vectors) -> Vectors:
        return dot(vector, self.inverse)

    def multiply(self, vector: Vectors) -> Vectors:
        return dot(vector, self.matrix)


class _CompositeMetric(AbstractMetric):
    """A metric made of others, whose maps apply the maps of the same name of its parts."""

    @abc.abstractmethod
    def _apply(self, name: str, vector: Vectors) -> Any:
        """Apply the method called `name`."""

    def whiten(self, vector: Vectors) -> Vectors:
        return self._apply("whiten", vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._apply("unwhiten", vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._apply("pull_score", score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._apply("push_score", score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._apply("solve", vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._apply("multiply", vector)


class KroneckerMetric(_CompositeMetric):
    """Q = A ⊗ B on the row-major vec of a block V: (A ⊗ B) vec(V) = vec(A V Bᵀ), so nothing of size d² is formed.

    With `bias` the last column of V is a layer's bias, whose coordinates follow all those of its weights.
    """

    left: AbstractMetric
    right: AbstractMetric
    bias: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    def logdet(self) -> Scalar:
        return self.right.size * self.left.logdet() + self.left.size * self.right.logdet()

    def bilinear(self, vector: Vectors) -> Bilinear:
        # By one application of Q instead of one of R and one of Rᵀ. Damping bounds the condition of the factors.
        if has_factors(self):
            product = self.multiply(vector)
            return Bilinear(vector, product, product)
        return super().bilinear(vector)

    def arrange(self, vector: Vectors) -> Vectors:
        if not self.bias:
            return vector
        rows, columns = self.left.size, self.right.size
        weights, bias = jnp.split(vector, [rows * (columns - 1)], axis=-1)
        block = weights.reshape(*vector.shape[:-1], rows, columns - 1)
        return jnp.concatenate([block, bias[..., None]], axis=-1).reshape(vector.shape)

    def restore(self, vector: Vectors) -> Vectors:
        if not self.bias:
            return vector
        many, rows, columns = vector.shape[:-1], self.left.size, self.right.size
        block = vector.reshape(*many, rows, columns)
        return jnp.concatenate([block[..., :-1].reshape(*many, rows * (columns - 1)), block[..., -1]], axis=-1)

    def for_arranged(self) -> "KroneckerMetric":
        return KroneckerMetric(self.left, self.right)

    def _apply(self, name: str, vector: Vectors) -> Any:
        """V with the right factor applied to its rows and the left one to its columns."""
        block = self.arrange(vector).reshape(*vector.shape[:-1], self.left.size, self.right.size)
        mapped = _on_columns(self.left, name, getattr(self.right, name)(block))
        return self.restore(mapped.reshape(vector.shape))


def has_factors(metric: AbstractMetric) -> TypeGuard[KroneckerMetric]:
    """Whether a metric is a Kronecker product of factors that are held as matrices."""
    return isinstance(metric, KroneckerMetric) and all(
        isinstance(factor, FactorMetric) for factor in (metric.left, metric.right)
    )


def _on_columns(factor: AbstractMetric, name: str, block: Float[Array, "*many a b"]) -> Float[Array, "*many a b"]:
    """A factor's map of the columns of blocks."""
    if isinstance(factor, FactorMetric) and name in ("solve", "multiply"):
        # One product per block, with the factor on the left: nothing is transposed.
        matrix = factor.inverse if name == "solve" else factor.matrix
        return dot(jnp.broadcast_to(matrix, (*block.shape[:-2], *matrix.shape)), block)
    return jnp.swapaxes(getattr(factor, name)(jnp.swapaxes(block, -1, -2)), -1, -2)


class BlocksMetric(_CompositeMetric):
    """A block-diagonal Q: one metric per consecutive range of coordinates."""

    parts: tuple[AbstractMetric, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def logdet(self) -> Scalar:
        return jnp.sum(jnp.stack([part.logdet() for part in self.parts]))

    def bilinear(self, vector: Vectors) -> Bilinear:
        return self._apply("bilinear", vector)

    def blocks(self) -> tuple[AbstractMetric, ...]:
        return tuple(block for part in self.parts for block in part.blocks())

    def arrange(self, vector: Vectors) -> Vectors:
        return self._apply("arrange", vector)

    def restore(self, vector: Vectors) -> Vectors:
        return self._apply("restore", vector)

    def for_arranged(self) -> "BlocksMetric":
        return BlocksMetric(tuple(part.for_arranged() for part in self.parts))

    def _apply(self, name: str, vector: Vectors) -> Any:
        pieces = split_columns(vector, [part.size for part in self.parts])
        mapped = [getattr(part, name)(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=-1), *mapped)


class StackMetric(_CompositeMetric):
    """A block-diagonal Q of many equal blocks, held as one batch of metrics (see `operators.Stack`)."""

    parts: AbstractMetric
    count: int = eqx.field(static=True)
    interleaved: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.count * self.parts.size

    def logdet(self) -> Scalar:
        return jnp.sum(jax.vmap(lambda part: part.logdet())(self.parts))

    def bilinear(self, vector: Vectors) -> Bilinear:
        return self._apply("bilinear", vector)

    def _apply(self, name: str, vector: Vectors) -> Any:
        size, count = self.parts.size, self.count
        shape, axis = ((size, count), -1) if self.interleaved else ((count, size), -2)
        apply: Any = jax.vmap(lambda part, values: getattr(part, name)(values), in_axes=(0, axis), out_axes=axis)
        mapped = apply(self.parts, vector.reshape(*vector.shape[:-1], *shape))
        return jax.tree.map(lambda array: array.reshape(vector.shape), mapped)


def apply_to_shared(
    metrics: AbstractMetric, name: _MatrixMap, vectors: Float[Array, "n d"], *, grouped: bool = True
) -> Float[Array, "l n d"]:
    """Q_l v or Q_l⁻¹ v of every metric of a batch and every vector.

    Args:
        metrics: the metrics.
        name: the method that is applied.
        vectors: the vectors.
        grouped: bound memory by `_MAX_ENTRIES`, a few metrics at a time; not where metrics lie on several devices.
    """
    groups = _groups(metrics, vectors.size) if grouped else None
    if groups is None:
        return _apply_at_once(metrics, name, vectors)
    each = jax.lax.map(lambda group: _apply_at_once(group, name, vectors), groups)
    return each.reshape(-1, *vectors.shape)


def sum_of_solved(
    metrics: AbstractMetric, coefficients: Float[Array, "l m n"], vectors: Float[Array, "n d"]
) -> Float[Array, "m d"]:
    """Σ_l Σ_j c_lij Q_l⁻¹ v_j, a few metrics at a time where all would exceed `_MAX_ENTRIES`."""

    def sum_group(metrics: AbstractMetric, coefficients: Float[Array, "l m n"]) -> Float[Array, "m d"]:
        solved = _apply_at_once(metrics, "solve", vectors)
        return jnp.tensordot(coefficients, solved, axes=((0, 2), (0, 1)), precision="highest")

    groups = _groups((metrics, coefficients), vectors.size)
    if groups is None:
        return sum_group(metrics, coefficients)
    first = jnp.zeros((coefficients.shape[1], vectors.shape[1]), vectors.dtype)
    return jax.lax.scan(lambda total, group: (total + sum_group(*group), None), first, groups)[0]


def _groups(metrics: Any, entries: int) -> Any:
    """A batch of metrics in equal groups, each of at most `_MAX_ENTRIES` entries; `None` for one group."""
    number = jax.tree_util.tree_leaves(metrics)[0].shape[0]
    sizes = (size for size in range(number, 0, -1) if number % size == 0)
    size = next((size for size in sizes if size * entries <= _MAX_ENTRIES), 1)
    if size == number:
        return None
    return jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), metrics)


def _apply_at_once(metrics: AbstractMetric, name: _MatrixMap, vectors: Float[Array, "n d"]) -> Float[Array, "l n d"]:
    if not has_factors(metrics) or metrics.bias:
        return apply_each(metrics, name, vectors)
    return on_gpu(
        lambda metrics, vectors: left_factors_first(metrics, name, vectors),
        lambda metrics, vectors: apply_each(metrics, name, vectors),
        metrics, vectors,
    )  # fmt: skip


def apply_each(metrics: AbstractMetric, name: str, vectors: Float[Array, "n d"]) -> Any:
    """The method called `name` of every metric of a batch, with the same vectors."""
    number = jax.tree_util.tree_leaves(metrics)[0].shape[0]
    copies = jnp.broadcast_to(vectors, (number, *vectors.shape))  # makes one batched matrix product
    return jax.vmap(lambda metric, values: getattr(metric, name)(values))(metrics, copies)


def left_factors_first(
    metrics: KroneckerMetric, name: _MatrixMap, vectors: Float[Array, "n d"]
) -> Float[Array, "l n d"]:
    """`apply_to_shared` for Kronecker products on a GPU: all left factors are applied by one matrix product."""
    left, right = (
        factor.inverse if name == "solve" else factor.matrix
        for factor in (metrics.left, metrics.right)
        if isinstance(factor, FactorMetric)
    )
    blocks = vectors.reshape(vectors.shape[0], left.shape[1], right.shape[1])
    mapped = jnp.einsum("lab,nbi->lani", left, blocks, precision="highest")
    rows = dot(mapped.reshape(mapped.shape[0], -1, mapped.shape[3]), right)
    return jnp.swapaxes(rows.reshape(mapped.shape), 1, 2).reshape(mapped.shape[0], *vectors.shape)


def split_columns(array: Float[Array, "... d"], sizes: Sequence[int]) -> list[Array]:
    """Consecutive blocks of the last axis."""
    return jnp.split(array, list(accumulate(sizes))[:-1], axis=-1)
