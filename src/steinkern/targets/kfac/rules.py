"""Rules that assign the arrays of layers to blocks of the curvature.

A rule is a tuple of blocks, and belongs to a type of layer or to a path in the parameters' tree. An array of at most
`EXACT_UP_TO` entries that no rule mentions has the block of the exact Fisher information; a larger one is refused.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax

from ..supports import Real, Space

EXACT_UP_TO = 256
"""The largest array without a rule that gets an exact, dense block."""


@dataclass(frozen=True)
class KroneckerBlock:
    """The Kronecker product of two factors, for a linear map's weights and the bias that is added to its result.

    The weights may be used by products (`weight @ x`, `x @ weight.T`, `einsum`), convolutions and lookups
    (`weight[index]`), any number of times, in `vmap` and `scan`.

    Args:
        weight: the name of the weights in the layer; "" if the path of the rule is the array itself.
        bias: the name of the bias. A bias that is not simply added to every product gets a separate, exact block.
        output_axis: the axis of the weights that numbers outputs, the first (0) or the last (−1).
        diagonal_inputs: keep only the diagonal of the inputs' factor, as for one-hot inputs.
    """

    weight: str = ""
    bias: str | None = None
    output_axis: int = 0
    diagonal_inputs: bool = False

    def __post_init__(self) -> None:
        if self.output_axis not in (0, -1):
            raise ValueError(f"`output_axis` must be 0 (the first axis) or -1 (the last one), got {self.output_axis}.")

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the arrays of this block."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, init=False)
class _FieldsBlock:
    """A block of the named arrays of a layer, or of all its arrays if there are no names; any use is allowed."""

    fields: tuple[str, ...]

    def __init__(self, *fields: str):
        object.__setattr__(self, "fields", fields)


class ExactBlock(_FieldsBlock):
    """The exact Fisher information of several arrays together, as one dense matrix."""


class UnitwiseBlock(_FieldsBlock):
    """The exact Fisher information of each unit: a small matrix for the i-th entries of arrays of equal size."""


class DiagonalBlock(_FieldsBlock):
    """The diagonal of the exact Fisher information."""


Block: TypeAlias = KroneckerBlock | ExactBlock | UnitwiseBlock | DiagonalBlock
Rule: TypeAlias = tuple[Block, ...]
Rules: TypeAlias = tuple[tuple[Any, Rule], ...]

_AFFINE: Rule = (KroneckerBlock("weight", "bias"),)
_NORMALISATION: Rule = (UnitwiseBlock("weight", "bias"),)
_RECURRENT: Rule = (KroneckerBlock("weight_ih"), KroneckerBlock("weight_hh"), ExactBlock("bias"), ExactBlock("bias_n"))
DEFAULT_RULES: dict[Any, Rule] = {
    eqx.nn.Linear: _AFFINE,
    eqx.nn.Conv: _AFFINE,
    eqx.nn.ConvTranspose: _AFFINE,
    eqx.nn.Embedding: (KroneckerBlock("weight", output_axis=-1, diagonal_inputs=True),),
    eqx.nn.LayerNorm: _NORMALISATION,
    eqx.nn.RMSNorm: _NORMALISATION,
    eqx.nn.GroupNorm: _NORMALISATION,
    eqx.nn.GRUCell: _RECURRENT,
    eqx.nn.LSTMCell: _RECURRENT[:3],
}
"""The rules for layers of Equinox. The projections of `MultiheadAttention` are `Linear` layers."""


def as_rules(rules: Any) -> Rules:
    """A dictionary of rules as a tuple of pairs, each rule a tuple of blocks."""
    if isinstance(rules, tuple):
        return rules
    if not isinstance(rules, Mapping):
        raise ValueError(f"`rules` must be a dictionary from types of layers or paths to rules, got {rules!r}.")
    pairs: list[tuple[Any, Rule]] = []
    for key, value in rules.items():
        if not isinstance(key, type | str):
            raise ValueError(f"`rules` must have types of layers or paths for keys, got {key!r}.")
        rule = value if isinstance(value, tuple | list) else (value,)
        if not all(isinstance(block, KroneckerBlock | _FieldsBlock) for block in rule):
            raise ValueError(f"`rules` must hold blocks such as `KroneckerBlock('weight', 'bias')`, got {value!r}.")
        pairs.append((key, tuple(rule)))
    return tuple(pairs)


class Piece(NamedTuple):
    """A block of the curvature, the leaves of the parameters in it, and the number of their coordinates."""

    block: Block
    leaves: tuple[int, ...]
    names: tuple[str, ...]
    size: int

    def split_bias(self, sizes: tuple[int, ...]) -> "list[Piece]":
        """Split a Kronecker block into one for the weights and an exact one for the bias."""
        (weight, bias), size = self.leaves, sizes[self.leaves[0]]
        return [
            self._replace(leaves=(weight,), names=self.names[:1], size=size),
            Piece(ExactBlock(), (bias,), self.names[1:], self.size - size),
        ]

    @property
    def name(self) -> str:
        """The paths of the leaves, for error messages."""
        return " and ".join(f"`{name or 'the array'}`" for name in self.names)


def pieces_of(space: Space, rules: Rules) -> list[Piece]:
    """The blocks of the curvature, in the order of their coordinates; `ValueError` for large arrays without a rule."""
    layout = space.layout
    blocks: dict[tuple[int, ...], Block] = {}
    for path, rule, leaves in _apply_rules(space, dict(rules)):
        unassigned = [leaf for leaf in leaves if not any(leaf in assigned for assigned in blocks)]
        blocks |= _blocks_of(rule, path, unassigned, layout.names)
    for leaf, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True)):
        if not any(leaf in assigned for assigned in blocks):
            if math.prod(shape) > EXACT_UP_TO:
                raise ValueError(
                    f"`KFAC` has no rule for `{name or 'the array'}` of shape {shape}, which is larger than the "
                    f"{EXACT_UP_TO} entries that get an exact block. {hint_for(name)}"
                )
            blocks[(leaf,)] = ExactBlock()
    pieces = []
    for members, block in sorted(blocks.items()):
        names = tuple(layout.names[leaf] for leaf in members)
        pieces.append(Piece(block, members, names, sum(layout.sizes[leaf] for leaf in members)))
    for piece in pieces:
        _check_piece(piece, space)
    if not any(isinstance(piece.block, KroneckerBlock) for piece in pieces):
        raise ValueError(
            "`KFAC` found no layer with known weights among the parameters, such as `equinox.nn.Linear`. Give "
            "`rules`, or use `Fisher(model, likelihood)`."
        )
    return pieces


def _apply_rules(space: Space, rules: Mapping[Any, Rule]) -> Iterator[tuple[str, Rule, list[int]]]:
    """Each rule with its path and leaves: rules of paths first, the longest path first, then rules of types."""
    layout = space.layout
    paths = sorted((key for key in rules if isinstance(key, str)), key=len, reverse=True)
    for path in paths:
        leaves = [i for i, name in enumerate(layout.names) if _join(path, "") == name or name.startswith(f"{path}.")]
        if not leaves:
            raise ValueError(f"`rules` must name paths among {', '.join(layout.names)}, got {path!r}.")
        yield path, rules[path], leaves
    shapes = layout.structure.unflatten([jax.ShapeDtypeStruct(shape, layout.dtype) for shape in layout.shapes])
    nodes, _ = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=lambda node: _rule_for(node, rules) is not None)
    first = 0
    for keys, node in nodes:
        last = first + len(jax.tree_util.tree_leaves(node))
        rule = _rule_for(node, rules)
        if rule is not None:
            yield jax.tree_util.keystr(keys, simple=True, separator="."), rule, list(range(first, last))
        first = last


def _rule_for(node: Any, rules: Mapping[Any, Rule]) -> Rule | None:
    """The rule of a node's type or of its nearest base class; those of the user come first."""
    for source in (rules, DEFAULT_RULES):
        for base in type(node).__mro__:
            if base in source:
                return source[base]
    return None


def _blocks_of(rule: Rule, path: str, unassigned: list[int], names: tuple[str, ...]) -> dict[tuple[int, ...], Block]:
    """The blocks of one rule by their leaves. Names without an array among the parameters are skipped."""
    blocks: dict[tuple[int, ...], Block] = {}
    for block in rule:
        wanted = {_join(path, field) for field in block.fields}
        takes_all = isinstance(block, _FieldsBlock) and not block.fields
        leaves = tuple(leaf for leaf in unassigned if takes_all or names[leaf] in wanted)
        if not leaves:
            continue
        listed = ", ".join(names[leaf] for leaf in leaves)
        if any(leaf in assigned for assigned in blocks for leaf in leaves):
            raise ValueError(f"`rules` must put every array into one block, got several for {listed}.")
        if leaves != tuple(range(leaves[0], leaves[0] + len(leaves))):
            raise ValueError(
                f"`rules` must put arrays into one block only if they are adjacent in the layer, got {listed}. Give "
                "each its own block."
            )
        blocks[leaves] = block
        if isinstance(block, KroneckerBlock) and names[leaves[0]] != _join(path, block.weight):
            if len(leaves) > 1:
                raise ValueError(
                    f"`KroneckerBlock` needs weights that come before their bias in the layer, got {listed}. Give the "
                    "bias its own block."
                )
            blocks[leaves] = ExactBlock()  # a bias whose weights are not parameters
    return blocks


def _join(path: str, field: str) -> str:
    return ".".join(part for part in (path, field) if part)


def hint_for(name: str) -> str:
    """How to handle an array that KFAC has no rule for."""
    return (
        f"Give a rule by type or path, `KFAC(..., rules={{MyLayer: KroneckerBlock('weight', 'bias')}})`; keep only the "
        f"diagonal, `rules={{'{name}': DiagonalBlock()}}`; give all particles the same value, by `split`; or use "
        "`Fisher(model, likelihood, diagonal=True)` for the whole network."
    )


def _check_piece(piece: Piece, space: Space) -> None:
    shapes = [space.layout.shapes[leaf] for leaf in piece.leaves]
    if isinstance(piece.block, UnitwiseBlock) and len({math.prod(shape) for shape in shapes}) > 1:
        raise ValueError(f"`UnitwiseBlock` needs arrays of equal size, got {piece.name} of shapes {shapes}.")
    if isinstance(piece.block, KroneckerBlock):
        if not all(isinstance(space.supports[leaf], Real) for leaf in piece.leaves):
            raise ValueError(
                f"`KFAC` needs layers without constraints, got a `support` for {piece.name}. Leave it out, or use "
                "`Fisher`."
            )
        if len(shapes[0]) < 2:
            raise ValueError(f"`KroneckerBlock` needs weights of at least two axes, got {piece.name} of {shapes[0]}.")
