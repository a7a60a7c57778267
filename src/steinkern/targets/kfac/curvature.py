"""`KFAC`: the Fisher information of a network, with one block for each layer."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ...core.particles import merge
from ...core.types import Batch, Key, PyTree, Vector, cast_like, check_callable, check_choice, check_count
from ...linalg.metrics import split_columns
from ...linalg.operators import AbstractOperator, Blocks
from ..checks import batch_length
from ..curvature import AbstractCurvature, likelihood_scale
from ..likelihood import AbstractLikelihood
from ..supports import Space
from ..target import BoundTarget
from .factors import SHARINGS, LayerRecord, Sharing, from_gradients, kronecker
from .rules import KroneckerBlock, Piece, Rules, as_rules, pieces_of
from .uses import Layer, Uses


class KFAC(AbstractCurvature):
    """The Fisher information with one block for each layer, mostly Kronecker products; no d×d matrix is formed.

    The model may use `equinox.nn` layers anywhere in the parameters' pytree, any number of times and at any number of
    positions, also in `vmap` and `scan`. Uses of one weight are summed. A use with inputs and outputs exchanged is
    refused, such as an embedding that is also the output layer.

    | layer | block |
    |---|---|
    | `Linear`, `Conv`, `ConvTranspose`, projections of `MultiheadAttention` | Kronecker product, bias included |
    | a convolution in groups | a Kronecker product for each group; the bias exactly |
    | `GRUCell`, `LSTMCell` | a Kronecker product for each matrix; biases exactly |
    | `Embedding` | Kronecker product with a diagonal input factor |
    | `LayerNorm`, `RMSNorm`, `GroupNorm` | exactly for each unit: a 2×2 matrix of its scale and offset |
    | other arrays of at most 256 entries, such as a noise variance | exactly |

    Larger arrays without a rule, and weights with uses other than products, convolutions and lookups, are refused
    before the run; the error names their path. `rules` adds layers, and changes the blocks of any layer.

    A Kronecker product is exact for a single example at a single position, and for any number of them in the linear
    networks that `sharing` names. Curvature between blocks is left out. The curvature of the prior enters by its row
    sums, which are exact for independent priors: averaged over each Kronecker product, and entry by entry elsewhere.

    Args:
        model: `model(parameters, example)`, the output (logits, means) for one example.
        likelihood: `Categorical()`, `Gaussian(variance)`, `GaussianNoise()` …
        sharing: the treatment of weights at several positions of an example (Eschenhagen et al., 2023): "expand" is
            exact for a deep linear network with a loss at every position, "reduce" for one that sums or averages over
            positions before the loss. With one position they are the same.
        rules: from types of layers, or paths in the parameters' tree, to blocks: `{MyLayer: KroneckerBlock("weight",
            "bias")}`, `{"encoder.norm": DiagonalBlock()}`. A rule of several blocks is a tuple of them.
        draws: `None` for the exact Fisher information in the output, with a backward pass for each of k outputs. A
            number of labels to draw from the model for each example instead, with a backward pass for each: unbiased
            for every k. With one draw, an entry's standard error relative to its exact value is of order 1/√b over b
            examples.
        seed: the seed of the labels. They depend on the seed and on the particle's coordinates in float32, so a
            particle that moves gets new labels.
        examples: the number of examples of every batch to measure on, evenly spaced in it; `None` measures on all.
            With minibatches a running average (`decay` of `matrix_svgd`) makes up for the noise: Martens and Grosse
            (2015) measure on an eighth of a batch. Without them the same examples are measured at every step.
        largest_side: the largest number of rows of a factor or exact block; larger ones are approximated by diagonal
            blocks of at most this size, and by their diagonal for 1.
    """

    model: Any
    likelihood: Any
    sharing: Sharing = eqx.field(default="expand", static=True, kw_only=True)
    rules: Rules = eqx.field(default=(), converter=as_rules, static=True, kw_only=True)
    draws: int | None = eqx.field(default=None, static=True, kw_only=True)
    seed: int = eqx.field(default=0, static=True, kw_only=True)
    examples: int | None = eqx.field(default=None, static=True, kw_only=True)
    largest_side: int = eqx.field(default=4096, static=True, kw_only=True)

    def __check_init__(self) -> None:
        check_callable("model", self.model, "a function of the parameters and one example")
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(f"`likelihood` must be a likelihood such as `Categorical()`, got {self.likelihood!r}.")
        check_choice("sharing", self.sharing, SHARINGS)
        if self.draws is not None:
            check_count("draws", self.draws)
        check_count("seed", self.seed, least=0)
        if self.examples is not None:
            check_count("examples", self.examples)
        check_count("largest_side", self.largest_side)

    def __call__(self, target: BoundTarget, point: Vector, batch: Batch) -> Blocks:
        if not target.exchangeable or batch is None:
            raise ValueError("`KFAC` needs single examples: give a `Posterior` and `data` to `fit`.")
        length = batch_length(batch)
        if self.examples is not None and self.examples < length:
            rows = np.arange(self.examples) * length // self.examples
            batch = jax.tree.map(lambda leaf: leaf[rows], batch)
        uses, pieces = self._find_uses(target, point, batch)
        keys = jr.split(_key_of(self.seed, point), batch_length(batch))
        records = jax.vmap(partial(self._record, target, point, uses, pieces))(batch, keys)
        scale = likelihood_scale(target, point, batch)
        prior = _prior_curvature(target, point)
        shapes = _space(target).layout.shapes
        blocks: list[AbstractOperator] = []
        diagonals = split_columns(prior, [piece.size for piece in pieces])
        for piece, record, diagonal in zip(pieces, records, diagonals, strict=True):
            if isinstance(record, LayerRecord):
                blocks.append(
                    kronecker(piece, record, self.sharing, scale, diagonal, shapes[piece.leaves[0]], self.largest_side)
                )
            else:
                blocks.append(from_gradients(piece, record, scale, diagonal, self.largest_side))
        return Blocks(tuple(blocks))

    def _find_uses(self, target: BoundTarget, point: Vector, batch: Batch) -> tuple[Uses, list[Piece]]:
        """The uses of layers' weights, and the blocks of the curvature; `ValueError` for arrays without a rule."""
        space = _space(target)
        pieces = pieces_of(space, self.rules)
        layers = [layer_of(piece) for piece in pieces if isinstance(piece.block, KroneckerBlock)]

        def output(leaves: list[Array], example: PyTree) -> Array:
            return jnp.reshape(self.model(merge(space.assemble(leaves), target.shared), example), (-1,))

        example = jax.eval_shape(lambda rows: jax.tree.map(lambda row: row[0], rows), batch)
        uses = Uses(jax.make_jaxpr(output)(_leaves(space, point), example), layers)
        return uses, [each for piece in pieces for each in self._split(piece, uses, space)]

    def _split(self, piece: Piece, uses: Uses, space: Space) -> list[Piece]:
        """Split the block of a layer into weights and bias unless the bias is simply added to every product."""
        if not isinstance(piece.block, KroneckerBlock) or len(piece.leaves) == 1:
            return [piece]
        return [piece] if uses.adds_bias(layer_of(piece)) else piece.split_bias(space.layout.sizes)

    def _record(
        self, target: BoundTarget, point: Vector, uses: Uses, pieces: list[Piece], example: PyTree, key: Key
    ) -> list[LayerRecord | list[Array]]:
        """One example's record for every block: a layer's inputs and gradients, or other arrays' gradients."""
        leaves = _leaves(_space(target), point)
        others = [leaf for piece in pieces if not isinstance(piece.block, KroneckerBlock) for leaf in piece.leaves]

        # Differentiated in the other leaves only: gradients in the weights would be the largest arrays of a step.
        def output(taps: list[Array], values: list[Array]) -> tuple[Array, list[Array]]:
            replaced = dict(zip(others, values, strict=True))
            arguments = [replaced.get(i, leaf) for i, leaf in enumerate(leaves)]
            (result,), inputs = uses.run([*arguments, *jax.tree.leaves(example)], iter(taps))
            return result, inputs

        value, pull_back, inputs = jax.vjp(output, uses.zero_taps(), [leaves[i] for i in others], has_aux=True)
        taps, gradients = jax.vmap(pull_back)(self._cotangents(value, key))
        by_leaf = dict(zip(others, gradients, strict=True))
        records: list[LayerRecord | list[Array]] = []
        for piece in pieces:
            if isinstance(piece.block, KroneckerBlock):
                records.append(uses.record(piece.leaves[0], inputs, taps))
            else:
                records.append([by_leaf[leaf] for leaf in piece.leaves])
        return records

    def _cotangents(self, value: Float[Array, " k"], key: Key) -> Float[Array, "m k"]:
        """Rows c for which Σ c cᵀ is the Fisher information in the output, exactly or in expectation."""
        if self.draws is None:
            return self.likelihood.fisher_root(value).T

        def score(key: Key) -> Array:
            label = self.likelihood.sample(key, value)
            return jax.grad(self.likelihood.log_prob)(value, label)

        return jax.vmap(score)(jr.split(key, self.draws)) / np.sqrt(self.draws).astype(value.dtype)


def _key_of(seed: int, point: Vector) -> Key:
    """A key that depends on the seed and on the particle's coordinates."""
    bits = jax.lax.bitcast_convert_type(point.astype(jnp.float32), jnp.uint32)
    odd = 2 * jnp.arange(point.shape[0], dtype=jnp.uint32) + 1  # makes the order of the coordinates count
    return jr.fold_in(jr.key(seed), jnp.sum(bits * odd, dtype=jnp.uint32))


def layer_of(piece: Piece) -> Layer:
    """The weights of a Kronecker block."""
    assert isinstance(piece.block, KroneckerBlock)
    bias = piece.leaves[1] if len(piece.leaves) == 2 else None
    return Layer(piece.leaves[0], piece.names[0], piece.block.output_axis, bias)


def _space(target: BoundTarget) -> Space:
    if not isinstance(target.space, Space):
        raise ValueError("`KFAC` needs parameters that hold Equinox layers, got the sites of another library's model.")
    return target.space


def _leaves(space: Space, point: Vector) -> list[Array]:
    return jax.tree_util.tree_leaves(space.layout.unravel(point))


def _prior_curvature(target: BoundTarget, point: Vector) -> Vector:
    """The row sums of −∇² of the log prior (and constraints' Jacobian), negative ones set to 0."""

    def score(x: Vector) -> Vector:
        return jax.grad(lambda at: cast_like(target.power, at) * target.log_base(at))(x)

    _, product = jax.jvp(score, (point,), (jnp.ones_like(point),))
    return jnp.maximum(-product, 0)
