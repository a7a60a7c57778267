"""Distances in a metric, which is applied once to every point; a block-diagonal one block by block.

A bandwidth, the weights of a mixture and a velocity all need (x − y)ᵀQ(x − y) of the same points. All of them call the
functions of this file, so XLA computes it once per step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core._xla import long_products
from ..core.types import Points
from ..linalg.metrics import AbstractMetric, Bilinear, apply_each, apply_to_shared, has_factors, split_columns
from .bandwidth import AbstractBandwidth, Median
from .distance import clear_rounding
from .radial.ring import devices_in_ring
from .scalar import AbstractScalarKernel

_MAX_DIRECT_DIMENSION = 4
"""The most coordinates for which distances are sums of products of differences: faster and more accurate."""


class InMetric(NamedTuple):
    """x, Qx and the factors of xᵀQy, one (n, b) array per block; see `Bilinear`."""

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
    """The points in a metric. Both are in the order of `AbstractMetric.arrange`, the points centred."""
    blocks = metric.blocks()
    pieces = split_columns(points, [block.size for block in blocks])
    forms = [block.bilinear(piece) for block, piece in zip(blocks, pieces, strict=True)]
    return InMetric(*zip(*forms, strict=True))


def in_metrics(metrics: AbstractMetric, points: Points) -> InMetric:
    """The points in each metric of a batch: (l, n, b) arrays, or (n, b) where all metrics share them."""
    blocks = metrics.blocks()
    pieces = split_columns(points, [block.size for block in blocks])
    return InMetric(*zip(*(_bilinear(*pair) for pair in zip(blocks, pieces, strict=True)), strict=True))


def _bilinear(metrics: AbstractMetric, points: Float[Array, "n b"]) -> Bilinear:
    if has_factors(metrics):  # see `KroneckerMetric.bilinear`
        products = apply_to_shared(metrics, "multiply", points, grouped=devices_in_ring(points.shape[0]) == 1)
        return Bilinear(points, products, products)
    return apply_each(metrics, "bilinear", points)


def batched_axes(points: InMetric) -> Any:
    """`in_axes` of `jax.vmap` over the metrics of `in_metrics`."""
    return jax.tree.map(lambda block: 0 if block.ndim == 3 else None, points)


def distances_in_metric(at: InMetric, points: InMetric) -> Float[Array, "m n"]:
    """(x_i − y_j)ᵀQ(x_i − y_j)."""
    if at.dimension <= _MAX_DIRECT_DIMENSION:
        return _by_differences(at, points)
    pairs = zip(at.left, points.right, strict=True)
    cross = _total([long_products(left, right) for left, right in pairs])
    squares = at.square()[:, None] + points.square()[None, :]
    return clear_rounding(squares - 2 * cross, squares, at.dimension)


def distances_within_metric(points: InMetric) -> Float[Array, "n n"]:
    """`distances_in_metric` of all pairs of points: symmetric, with zeros on the diagonal."""
    if points.dimension <= _MAX_DIRECT_DIMENSION:
        return _by_differences(points, points)
    pairs = zip(points.left, points.right, strict=True)
    # Qx on the left: of a batch of metrics, XLA would transpose the operand on the right.
    cross = _total([long_products(right, left) for left, right in pairs])
    norms = jnp.diagonal(cross)
    squares = norms[:, None] + norms[None, :]
    return clear_rounding(squares - (cross + cross.T), squares, points.dimension)


def _by_differences(at: InMetric, points: InMetric) -> Float[Array, "m n"]:
    def columns(blocks: tuple[Array, ...]) -> list[Array]:
        return [block[:, i] for block in blocks for i in range(block.shape[1])]

    lists = (columns(blocks) for blocks in (at.left, points.left, at.right, points.right))
    terms = [(a[:, None] - b[None, :]) * (c[:, None] - d[None, :]) for a, b, c, d in zip(*lists, strict=True)]
    return jnp.maximum(_total(terms), 0)  # NaN stays NaN


def needs_only_distances(rule: Any) -> bool:
    """Whether a bandwidth depends on distances alone: a number, or the median."""
    return isinstance(rule, Median) or not isinstance(rule, AbstractBandwidth)


def bandwidth_in_metric(rule: Median, points: InMetric) -> Array:
    """The median's bandwidth in the metric."""
    n = points.left[0].shape[0]
    sample = points if n <= rule.max_points else points.rows(rule.sampled(n))
    return rule.from_distances(distances_within_metric(sample), n)


def adapt_in_metric(kernel: AbstractScalarKernel, points: InMetric) -> AbstractScalarKernel:
    """A copy of a kernel with the median's bandwidth in the metric; the kernel itself where it has a number."""
    return kernel.with_bandwidth(bandwidth_in_metric(kernel.bandwidth, points)) if kernel.adapts else kernel


def _total(values: list[Array]) -> Array:
    return sum(values[1:], values[0])
