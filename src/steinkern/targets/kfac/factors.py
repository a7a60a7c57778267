"""Computes the blocks of the curvature from the inputs and output gradients at all positions.

Of one example, let a layer have inputs x_t and output gradients g_t at the positions t = 1 … T, where the gradients
are those of the columns of a root of the output's Fisher information. The exact block is Σ over examples of
(Σ_t g_t ⊗ x_t)(Σ_t g_t ⊗ x_t)ᵀ. With means over examples and positions (Eschenhagen et al., 2023),

- "expand" takes (Σ g_t g_tᵀ) ⊗ mean(x_t x_tᵀ), as if positions were examples: exact for a deep linear network with a
  Gaussian loss at every position;
- "reduce" takes (Σ ĝ ĝᵀ) ⊗ mean(x̂ x̂ᵀ) with ĝ = Σ_t g_t and x̂ = mean_t x_t: exact for a deep linear network with a
  Gaussian loss of the sum or mean over positions.

With one position both are the factors of Martens and Grosse (2015).
"""

import math
from typing import Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core._xla import MIN_SPLIT_LENGTH, long_squares
from ...core.types import Scalar, Vector
from ...linalg.metrics import split_columns
from ...linalg.operators import AbstractOperator, Blocks, Dense, Diagonal, Kronecker, Stack
from .rules import DiagonalBlock, KroneckerBlock, Piece, UnitwiseBlock

Sharing: TypeAlias = Literal["expand", "reduce"]
SHARINGS = get_args(Sharing)


class LayerRecord(NamedTuple):
    """The inputs and output gradients of one layer in a batch; for one example without the axis of examples.

    Args:
        inputs: (examples, positions, groups, inputs), or the indices of lookups, (examples, positions).
        gradients: at the outputs: (examples, columns of the root, positions, outputs).
    """

    inputs: Array
    gradients: Array

    @property
    def looks_up(self) -> bool:
        """Whether the inputs are indices."""
        return self.inputs.ndim == 2


def kronecker(
    piece: Piece,
    record: LayerRecord,
    sharing: Sharing,
    scale: Scalar,
    prior: Vector,
    shape: tuple[int, ...],
    largest_side: int,
) -> AbstractOperator:
    """The block of a layer's weights and bias.

    Args:
        piece: the block.
        record: its inputs and gradients in the batch.
        sharing: as in `KFAC`.
        scale: the factor of the sum over the batch.
        prior: the prior's curvature of its coordinates, which is averaged over each Kronecker product.
        shape: the shape of the weights.
        largest_side: the largest dense factor; see `second_moment`.
    """
    block = piece.block
    assert isinstance(block, KroneckerBlock)
    with_bias = len(piece.leaves) == 2
    gradients = record.gradients.astype(prior.dtype)
    if sharing == "reduce":
        gradients = jnp.sum(gradients, axis=2, keepdims=True)
    outputs_last = block.output_axis == -1
    output_size = shape[block.output_axis]
    if record.looks_up or block.diagonal_inputs:
        inputs = Diagonal(_input_squares(record, math.prod(shape) // output_size, sharing, prior))
        output = second_moment(gradients.reshape(-1, output_size), scale, largest_side)
        return _product(inputs, output, jnp.mean(prior), outputs_last, False)
    rows = record.inputs.astype(prior.dtype)
    if sharing == "reduce":
        rows = jnp.mean(rows, axis=1, keepdims=True)
    groups = rows.shape[2]
    rows = rows.reshape(-1, groups, rows.shape[-1])
    gradients = gradients.reshape(-1, groups, output_size // groups)

    def one_group(x: Float[Array, "n i"], g: Float[Array, "rows o"], shift: Scalar) -> Kronecker:
        moment = second_moment_with_ones if with_bias else second_moment
        inputs = moment(x, jnp.asarray(1 / x.shape[0], x.dtype), largest_side)
        return _product(inputs, second_moment(g, scale, largest_side), shift, outputs_last, with_bias)

    if groups == 1:
        return one_group(rows[:, 0], gradients[:, 0], jnp.mean(prior))
    shifts = jnp.mean(prior.reshape(groups, -1), axis=1)
    return Stack(jax.vmap(one_group, in_axes=(1, 1, 0))(rows, gradients, shifts), groups)


def _product(
    inputs: AbstractOperator, outputs: AbstractOperator, shift: Scalar, outputs_last: bool, with_bias: bool
) -> Kronecker:
    """The Kronecker product of both factors in the order of the coordinates; a bias is one more input."""
    return Kronecker(inputs, outputs, shift) if outputs_last else Kronecker(outputs, inputs, shift, with_bias)


def _input_squares(record: LayerRecord, size: int, sharing: Sharing, like: Vector) -> Float[Array, " i"]:
    """The diagonal of the inputs' factor; for lookups the frequencies of the indices."""
    inputs = record.inputs
    if not record.looks_up:
        rows = inputs.astype(like.dtype)
        rows = jnp.mean(rows, axis=1, keepdims=True) if sharing == "reduce" else rows
        return jnp.mean(rows.reshape(-1, size) ** 2, axis=0)
    if sharing == "expand":
        return jnp.zeros(size, like.dtype).at[inputs.reshape(-1)].add(1) / inputs.size
    counts = jax.vmap(lambda indices: jnp.zeros(size, like.dtype).at[indices].add(1))(inputs)
    return jnp.mean((counts / inputs.shape[1]) ** 2, axis=0)


def from_gradients(
    piece: Piece, gradients: list[Float[Array, "b m ..."]], scale: Scalar, prior: Vector, largest_side: int
) -> AbstractOperator:
    """The block of arrays without a Kronecker product, from the gradients of single examples."""
    flat = [each.reshape(each.shape[0] * each.shape[1], -1) for each in gradients]
    if isinstance(piece.block, DiagonalBlock) or piece.size == 1:
        return Diagonal(scale * jnp.sum(jnp.concatenate(flat, axis=1) ** 2, axis=0) + prior)
    if isinstance(piece.block, UnitwiseBlock):
        units = flat[0].shape[1]
        rows = jnp.stack(flat, axis=2)  # rows, units, arrays
        matrices = jnp.einsum("rui,ruj->uij", rows, rows, precision="highest")
        priors = jax.vmap(jnp.diag)(prior.reshape(len(flat), units).T)
        return Stack(Dense(scale * matrices + priors), units, interleaved=True)
    return _plus_diagonal(second_moment(jnp.concatenate(flat, axis=1), scale, largest_side), prior)


def second_moment(rows: Float[Array, "n d"], scale: Scalar, largest_side: int) -> AbstractOperator:
    """Σ r rᵀ over the rows r, times the scale: dense, or cut into equal diagonal blocks of at most `largest_side` rows.

    Nothing larger than a block is formed. The last block is smaller if the rows do not divide evenly.
    """
    size = rows.shape[1]
    if size <= largest_side:
        return Dense(scale * long_squares(rows))
    if largest_side == 1:
        return Diagonal(scale * jnp.sum(rows**2, axis=0))
    side = -(-size // -(-size // largest_side))  # as few blocks as possible, as even as possible
    count = size // side
    even = rows[:, : count * side].reshape(-1, count, side)
    blocks = Stack(Dense(scale * jnp.einsum("rci,rcj->cij", even, even, precision="highest")), count)
    if count * side == size:
        return blocks
    return Blocks((blocks, second_moment(rows[:, count * side :], scale, largest_side)))


def second_moment_with_ones(rows: Float[Array, "n d"], scale: Scalar, largest_side: int) -> AbstractOperator:
    """`second_moment` of the rows (r, 1), the inputs of a layer with a bias. Many rows are summed, not copied."""
    count, size = rows.shape
    if count < MIN_SPLIT_LENGTH or size + 1 > largest_side:
        return second_moment(jnp.concatenate([rows, jnp.ones_like(rows[:, :1])], axis=1), scale, largest_side)
    sums = jnp.sum(rows, axis=0)[None]
    last = jnp.concatenate([sums, jnp.full((1, 1), count, rows.dtype)], axis=1)
    matrix = jnp.concatenate([jnp.concatenate([long_squares(rows), sums.T], axis=1), last])
    return Dense(scale * matrix)


def _plus_diagonal(operator: AbstractOperator, entries: Vector) -> AbstractOperator:
    """A second moment plus a diagonal matrix."""
    if isinstance(operator, Dense):
        return Dense(operator.matrix + jnp.diag(entries))
    if isinstance(operator, Stack):
        each = jax.vmap(_plus_diagonal)(operator.parts, entries.reshape(operator.count, -1))
        return Stack(each, operator.count)
    if isinstance(operator, Blocks):
        pieces = split_columns(entries, [part.size for part in operator.parts])
        return Blocks(tuple(map(_plus_diagonal, operator.parts, pieces)))
    assert isinstance(operator, Diagonal)
    return Diagonal(operator.entries + entries)
