"""Metrics of Kronecker products and of blocks, by the metrics of their factors and parts; see `metric`."""

from typing import Any, Literal, TypeAlias, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .metric import AbstractMetric, Bilinear, DenseMetric, Vectors, dot, split_columns
from .types import Matrix, Scalar

_Name: TypeAlias = Literal["whiten", "unwhiten", "pull_score", "push_score", "solve", "multiply"]
"""A linear map of a metric, by the name of its method."""


class FactorMetric(AbstractMetric):
    """A factor of a Kronecker product, held as Q and Q⁻¹, so that `multiply` and `solve` are one matrix product each.

    Without `root` and `inverse_root`, the maps by R factorise anew.
    """

    matrix: Float[Array, "d d"]
    inverse: Float[Array, "d d"]
    log_determinant: Scalar
    root: Float[Array, "d d"] | None = None
    inverse_root: Float[Array, "d d"] | None = None

    @classmethod
    def of(cls, matrix: Matrix) -> "FactorMetric":
        """The metric of a matrix known to be positive definite; a matrix that is not gives NaN."""
        metric = DenseMetric.of(matrix)
        inverse = dot(metric.inverse_root, metric.inverse_root.T)
        return cls(matrix, inverse, metric.log_determinant, metric.root, metric.inverse_root)

    @property
    def size(self) -> int:
        return self.matrix.shape[-1]

    def whiten(self, vector: Vectors) -> Vectors:
        return self._by_roots().whiten(vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._by_roots().unwhiten(vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._by_roots().pull_score(score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._by_roots().push_score(score)

    def solve(self, vector: Vectors) -> Vectors:
        return dot(vector, self.inverse)

    def multiply(self, vector: Vectors) -> Vectors:
        return dot(vector, self.matrix)

    def logdet(self) -> Scalar:
        return self.log_determinant

    def without_roots(self) -> "FactorMetric":
        return FactorMetric(self.matrix, self.inverse, self.log_determinant)

    def _by_roots(self) -> DenseMetric:
        if self.root is None or self.inverse_root is None:
            return DenseMetric.of(self.matrix)
        return DenseMetric(self.root, self.inverse_root, self.log_determinant)


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
        return self._on_both_sides("whiten", vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._on_both_sides("unwhiten", vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._on_both_sides("pull_score", score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._on_both_sides("push_score", score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._on_both_sides("solve", vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._on_both_sides("multiply", vector)

    def logdet(self) -> Scalar:
        return self.right.size * self.left.logdet() + self.left.size * self.right.logdet()

    def bilinear(self, vector: Vectors) -> Bilinear:
        # By one application of Q instead of one of R and one of Rᵀ. Damping bounds the condition of the factors.
        if has_factors(self):
            product = self.multiply(vector)
            return Bilinear(vector, product, product)
        return super().bilinear(vector)

    def arrange(self, vector: Vectors) -> Vectors:
        return self._as_block(vector).reshape(vector.shape)

    def restore(self, vector: Vectors) -> Vectors:
        return self._as_vector(vector.reshape(*vector.shape[:-1], self.left.size, self.right.size))

    def for_arranged(self) -> "KroneckerMetric":
        return KroneckerMetric(self.left, self.right)

    def without_roots(self) -> "KroneckerMetric":
        return KroneckerMetric(self.left.without_roots(), self.right.without_roots(), self.bias)

    def _on_both_sides(self, name: _Name, vector: Vectors) -> Vectors:
        """V with the right factor applied to its rows and the left one to its columns."""
        moved = getattr(self.right, name)(self._as_block(vector))
        return self._as_vector(_on_columns(self.left, name, moved))

    def _as_block(self, vector: Vectors) -> Float[Array, "*many a b"]:
        """The block V with these coordinates."""
        many, rows, columns = vector.shape[:-1], self.left.size, self.right.size
        if not self.bias:
            return vector.reshape(*many, rows, columns)
        weights, bias = vector[..., : rows * (columns - 1)], vector[..., rows * (columns - 1) :]
        return jnp.concatenate([weights.reshape(*many, rows, columns - 1), bias[..., None]], axis=-1)

    def _as_vector(self, block: Float[Array, "*many a b"]) -> Vectors:
        """The coordinates of a block V."""
        many, (rows, columns) = block.shape[:-2], block.shape[-2:]
        if not self.bias:
            return block.reshape(*many, rows * columns)
        weights = block[..., :-1].reshape(*many, rows * (columns - 1))
        return jnp.concatenate([weights, block[..., -1]], axis=-1)


_Whole: TypeAlias = Literal["solve", "multiply"]
_TOGETHER = 2**25
"""The most entries that vectors have after the metrics of a group; of more, memory and not speed is the limit."""


def apply_to_shared(
    metrics: AbstractMetric, name: _Whole, vectors: Float[Array, "n d"], *, grouped: bool = True
) -> Float[Array, "l n d"]:
    """Q_l v or Q_l⁻¹ v of every metric of a batch and every vector.

    Args:
        metrics: the metrics.
        name: the method that is applied.
        vectors: the vectors.
        grouped: apply few metrics at a time where vectors are long; not where metrics lie on several devices.
    """
    groups = _groups(metrics, vectors.size) if grouped else None
    if groups is None:
        return _apply_at_once(metrics, name, vectors)
    each = jax.lax.map(lambda some: _apply_at_once(some, name, vectors), groups)
    return each.reshape(-1, *vectors.shape)


def sum_of_solved(
    metrics: AbstractMetric, coefficients: Float[Array, "l m n"], vectors: Float[Array, "n d"]
) -> Float[Array, "m d"]:
    """Σ_l Σ_j c_lij Q_l⁻¹ v_j; of few metrics at a time where vectors are long."""

    def of_some(metrics: AbstractMetric, coefficients: Float[Array, "l m n"]) -> Float[Array, "m d"]:
        solved = _apply_at_once(metrics, "solve", vectors)
        return jnp.tensordot(coefficients, solved, axes=((0, 2), (0, 1)), precision="highest")

    groups = _groups((metrics, coefficients), vectors.size)
    if groups is None:
        return of_some(metrics, coefficients)
    shape = jax.eval_shape(of_some, *jax.tree.map(lambda leaf: leaf[0], groups))
    first = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(lambda total, some: (total + of_some(*some), None), first, groups)[0]


def _groups(metrics: Any, entries: int) -> Any:
    """A batch of metrics in equal groups, each for at most `_TOGETHER` entries; `None` for a single group."""
    number = jax.tree_util.tree_leaves(metrics)[0].shape[0]
    sizes = (size for size in range(number, 0, -1) if number % size == 0)
    size = next((size for size in sizes if size * entries <= _TOGETHER), 1)
    if size == number:
        return None
    return jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), metrics)


def _apply_at_once(metrics: AbstractMetric, name: _Whole, vectors: Float[Array, "n d"]) -> Float[Array, "l n d"]:
    if not has_factors(metrics) or metrics.bias:
        return _one_by_one(metrics, name, vectors)
    return jax.lax.platform_dependent(
        metrics,
        vectors,
        cuda=lambda metrics, vectors: left_factors_first(metrics, name, vectors),
        default=lambda metrics, vectors: _one_by_one(metrics, name, vectors),
    )


def _one_by_one(metrics: AbstractMetric, name: _Whole, vectors: Float[Array, "n d"]) -> Float[Array, "l n d"]:
    number = jax.tree_util.tree_leaves(metrics)[0].shape[0]
    each = jnp.broadcast_to(vectors, (number, *vectors.shape))  # one batch of products
    return jax.vmap(lambda metric, own: getattr(metric, name)(own))(metrics, each)


def left_factors_first(metrics: "KroneckerMetric", name: _Whole, vectors: Float[Array, "n d"]) -> Float[Array, "l n d"]:
    """The same for Kronecker products, on a GPU: the left factors of all metrics are one product of matrices."""
    left, right = (
        factor.inverse if name == "solve" else factor.matrix
        for factor in (metrics.left, metrics.right)
        if isinstance(factor, FactorMetric)
    )
    blocks = vectors.reshape(vectors.shape[0], left.shape[1], right.shape[1])
    moved = jnp.einsum("lab,nbi->lani", left, blocks, precision="highest")
    rows = dot(moved.reshape(moved.shape[0], -1, moved.shape[3]), right)
    return jnp.swapaxes(rows.reshape(moved.shape), 1, 2).reshape(moved.shape[0], *vectors.shape)


def has_factors(metric: AbstractMetric) -> TypeGuard[KroneckerMetric]:
    """Whether a metric is a Kronecker product of factors that are held as matrices."""
    return isinstance(metric, KroneckerMetric) and all(
        isinstance(factor, FactorMetric) for factor in (metric.left, metric.right)
    )


def _on_columns(factor: AbstractMetric, name: _Name, block: Float[Array, "*many a b"]) -> Float[Array, "*many a b"]:
    """A factor's map of the columns of blocks."""
    if isinstance(factor, FactorMetric) and name in ("solve", "multiply"):
        # One product a block, from the left: nothing is transposed.
        matrix = factor.inverse if name == "solve" else factor.matrix
        return dot(jnp.broadcast_to(matrix, (*block.shape[:-2], *matrix.shape)), block)
    return jnp.swapaxes(getattr(factor, name)(jnp.swapaxes(block, -1, -2)), -1, -2)


class BlocksMetric(AbstractMetric):
    """A block-diagonal Q: one metric for each consecutive stretch of coordinates."""

    parts: tuple[AbstractMetric, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def whiten(self, vector: Vectors) -> Vectors:
        return self._on_each("whiten", vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._on_each("unwhiten", vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._on_each("pull_score", score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._on_each("push_score", score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._on_each("solve", vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._on_each("multiply", vector)

    def logdet(self) -> Scalar:
        return jnp.sum(jnp.stack([part.logdet() for part in self.parts]))

    def bilinear(self, vector: Vectors) -> Bilinear:
        pieces = split_columns(vector, [part.size for part in self.parts])
        forms = [part.bilinear(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return Bilinear(*(jnp.concatenate(each, axis=-1) for each in zip(*forms, strict=True)))

    def blocks(self) -> tuple[AbstractMetric, ...]:
        return tuple(block for part in self.parts for block in part.blocks())

    def arrange(self, vector: Vectors) -> Vectors:
        return self._on_each("arrange", vector)

    def restore(self, vector: Vectors) -> Vectors:
        return self._on_each("restore", vector)

    def for_arranged(self) -> "BlocksMetric":
        return BlocksMetric(tuple(part.for_arranged() for part in self.parts))

    def without_roots(self) -> "BlocksMetric":
        return BlocksMetric(tuple(part.without_roots() for part in self.parts))

    def _on_each(self, name: _Name | Literal["arrange", "restore"], vector: Vectors) -> Vectors:
        pieces = split_columns(vector, [part.size for part in self.parts])
        moved = [getattr(part, name)(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return jnp.concatenate(moved, axis=-1)


class StackMetric(AbstractMetric):
    """A block-diagonal Q of many equal blocks, held as one batch of metrics (see `operators.Stack`)."""

    parts: AbstractMetric
    count: int = eqx.field(static=True)
    interleaved: bool = eqx.field(default=False, static=True)

    @property
    def size(self) -> int:
        return self.count * self.parts.size

    def whiten(self, vector: Vectors) -> Vectors:
        return self._on_each("whiten", vector)

    def unwhiten(self, vector: Vectors) -> Vectors:
        return self._on_each("unwhiten", vector)

    def pull_score(self, score: Vectors) -> Vectors:
        return self._on_each("pull_score", score)

    def push_score(self, score: Vectors) -> Vectors:
        return self._on_each("push_score", score)

    def solve(self, vector: Vectors) -> Vectors:
        return self._on_each("solve", vector)

    def multiply(self, vector: Vectors) -> Vectors:
        return self._on_each("multiply", vector)

    def logdet(self) -> Scalar:
        return jnp.sum(jax.vmap(lambda part: part.logdet())(self.parts))

    def bilinear(self, vector: Vectors) -> Bilinear:
        return self._on_each("bilinear", vector)

    def without_roots(self) -> "StackMetric":
        return StackMetric(self.parts.without_roots(), self.count, self.interleaved)

    def _on_each(self, name: _Name | Literal["bilinear"], vector: Vectors) -> Any:
        shape = (self.parts.size, self.count) if self.interleaved else (self.count, self.parts.size)
        block = vector.reshape(*vector.shape[:-1], *shape)
        block = jnp.swapaxes(block, -1, -2) if self.interleaved else block

        def apply(part: AbstractMetric, own: Array) -> Any:
            return getattr(part, name)(own)

        def flat(moved: Array) -> Array:
            moved = jnp.swapaxes(moved, -1, -2) if self.interleaved else moved
            return moved.reshape(vector.shape)

        return jax.tree.map(flat, jax.vmap(apply, in_axes=(0, -2), out_axes=-2)(self.parts, block))
