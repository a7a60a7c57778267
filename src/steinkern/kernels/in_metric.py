"""Distances in a metric from one application of it to every point, block by block of a block-diagonal one.

A bandwidth, the weights of a mixture and a velocity all need (x − y)ᵀQ(x − y) of the same points. Written the same way
for each of them, a compiled step has it once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.block_metric import apply_to_shared, has_factors
from ..core.metric import AbstractMetric, Bilinear, split_columns
from ..core.pieces import long_products
from ..core.types import Points
from .bandwidth import AbstractBandwidth, Median
from .distance import clear_rounding
from .radial.ring import devices_in_ring
from .scalar import AbstractScalarKernel

_FEW_COORDINATES = 4
"""Up to here, distances are sums of products of differences: no product of matrices is as fast, or as accurate."""


class InMetric(NamedTuple):
    """What distances in a metric need of points, one (n, b) array for each block; see `Bilinear`."""

    left: tuple[Array, ...]
    right: tuple[Array, ...]
    products: tuple[Array, ...]
    """Q x."""

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return sum(block.shape[-1] for block in self.left)

    def rows(self, rows: Any) -> "InMetric":
        """Some of the points."""
        return InMetric(*(tuple(block[rows] for block in blocks) for blocks in self))

    def square(self) -> Float[Array, " n"]:
        """xᵀQx of every point."""
        return _total([jnp.sum(left * right, axis=-1) for left, right in zip(self.left, self.right, strict=True)])

    def square_from(self, origin: "InMetric") -> Float[Array, " n"]:
        """(x − y)ᵀQ(x − y) of every point with one point y, which is an `InMetric` of (1, b) arrays."""
        offsets = (tuple(a - b for a, b in zip(*pair, strict=True)) for pair in zip(self, origin, strict=True))
        return InMetric(*offsets).square()


def in_metric(metric: AbstractMetric, points: Points) -> InMetric:
    """The points as a metric sees them. Both are in the order of `AbstractMetric.arrange`, the points centred."""
    blocks = metric.blocks()
    pieces = split_columns(points, [block.size for block in blocks])
    forms = [block.bilinear(piece) for block, piece in zip(blocks, pieces, strict=True)]
    return InMetric(*zip(*forms, strict=True))


def in_metrics(metrics: AbstractMetric, points: Points) -> InMetric:
    """The points as each metric of a batch sees them: (l, n, b) arrays, or (n, b) where all metrics have the same."""
    blocks = metrics.blocks()
    pieces = split_columns(points, [block.size for block in blocks])
    return InMetric(*zip(*(_bilinear(*pair) for pair in zip(blocks, pieces, strict=True)), strict=True))


def _bilinear(metrics: AbstractMetric, points: Float[Array, "n b"]) -> Bilinear:
    if has_factors(metrics):  # see `KroneckerMetric.bilinear`
        products = apply_to_shared(metrics, "multiply", points, grouped=devices_in_ring(points.shape[0]) == 1)
        return Bilinear(points, products, products)
    number = jax.tree_util.tree_leaves(metrics)[0].shape[0]
    each = jnp.broadcast_to(points, (number, *points.shape))  # as one batch of products
    return jax.vmap(lambda metric, own: metric.bilinear(own))(metrics, each)


def batched_axes(seen: InMetric) -> Any:
    """The axes of metrics in the arrays of `in_metrics`, for `jax.vmap`."""
    return jax.tree.map(lambda block: 0 if block.ndim == 3 else None, seen)


def distances_in_metric(at: InMetric, points: InMetric) -> Float[Array, "m n"]:
    """(x_i − y_j)ᵀQ(x_i − y_j)."""
    if at.dimension <= _FEW_COORDINATES:
        return _by_differences(at, points)
    pairs = zip(at.left, points.right, strict=True)
    cross = _total([long_products(left, right) for left, right in pairs])
    squares = at.square()[:, None] + points.square()[None, :]
    return clear_rounding(squares - 2 * cross, squares, at.dimension)


def distances_within_metric(points: InMetric) -> Float[Array, "n n"]:
    """The same of all pairs of points: symmetric, with zeros on the diagonal."""
    if points.dimension <= _FEW_COORDINATES:
        return _by_differences(points, points)
    pairs = zip(points.left, points.right, strict=True)
    # Q x first: of a batch of metrics these are many, which as second factor would be transposed.
    cross = _total([long_products(right, left) for left, right in pairs])
    own = jnp.diagonal(cross)
    squares = own[:, None] + own[None, :]
    return clear_rounding(squares - (cross + cross.T), squares, points.dimension)


def _by_differences(at: InMetric, points: InMetric) -> Float[Array, "m n"]:
    def columns(blocks: tuple[Array, ...]) -> list[Array]:
        return [block[:, place] for block in blocks for place in range(block.shape[1])]

    lists = (columns(blocks) for blocks in (at.left, points.left, at.right, points.right))
    terms = [(a[:, None] - b[None, :]) * (c[:, None] - d[None, :]) for a, b, c, d in zip(*lists, strict=True)]
    return jnp.maximum(_total(terms), 0)  # NaN stays NaN


def reads_distances(rule: Any) -> bool:
    """Whether a bandwidth needs no more than distances: a number, or the median."""
    return isinstance(rule, Median) or not isinstance(rule, AbstractBandwidth)


def bandwidth_in_metric(rule: Median, points: InMetric) -> Array:
    """The median's bandwidth in the metric."""
    n = points.left[0].shape[0]
    sample = points if n <= rule.largest else points.rows(rule.sampled(n))
    return rule.from_distances(distances_within_metric(sample), n)


def adapt_in_metric(kernel: AbstractScalarKernel, points: InMetric) -> AbstractScalarKernel:
    """A copy of a kernel with the median's bandwidth in the metric; the kernel itself where it has a number."""
    return kernel.with_bandwidth(bandwidth_in_metric(kernel.bandwidth, points)) if kernel.adapts else kernel


def _total(values: list[Array]) -> Array:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
