"""Graphical SVGD: a diagonal matrix-valued kernel, one local scalar kernel per block of coordinates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.particles import Layout, Scored
from ..core.types import Matrix, Points, Vector
from .matrix import AbstractMatrixKernel, check_scalar_kernel
from .radial import radial_velocity
from .scalar import AbstractScalarKernel


class Graphical(AbstractMatrixKernel):
    """K(x, y) = diag[k_b(x, y)]: the kernel of block b depends only on the coordinates in its neighbourhood.

    Wang, Zeng and Liu (2018) and Zhuo et al. (2018): where the target factorizes over a graph, a kernel on a variable's
    Markov blanket leaves out the distances in all other coordinates, which dominate in many dimensions.

    Args:
        scalar: the local kernel; a bandwidth rule is evaluated for every block on its neighbourhood.
        blocks: the coordinates of every block, together covering each coordinate once.
        neighbors: for every block the other coordinates that its kernel depends on; none by default.
    """

    scalar: AbstractScalarKernel
    blocks: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    around: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(
        self,
        scalar: AbstractScalarKernel,
        blocks: Sequence[Sequence[int]],
        neighbors: Sequence[Sequence[int]] | None = None,
    ):
        check_scalar_kernel("scalar", scalar)
        members = [list(block) for block in blocks]
        covered = sorted(i for block in members for i in block)
        if not covered or covered != list(range(len(covered))):
            raise ValueError(f"`blocks` must cover every coordinate 0 … d−1 exactly once, got {members}.")
        if neighbors is None:
            neighbors = [[] for _ in members]
        if len(neighbors) != len(members):
            raise ValueError(f"`neighbors` must have one entry per block, {len(members)}, got {len(neighbors)}.")
        around = [block + sorted(set(near) - set(block)) for block, near in zip(members, neighbors, strict=True)]
        unknown = sorted({i for near in around for i in near} - set(covered))
        if unknown:
            raise ValueError(f"`neighbors` names coordinates {unknown}, but there are {len(covered)}.")
        self.scalar = scalar
        self.blocks = tuple(tuple(block) for block in members)
        self.around = tuple(tuple(near) for near in around)

    @classmethod
    def coordinatewise(cls, scalar: AbstractScalarKernel, dimension: int) -> "Graphical":
        """A kernel with one block for each coordinate."""
        return cls(scalar, [[i] for i in range(dimension)])

    @classmethod
    def by_name(
        cls, scalar: AbstractScalarKernel, layout: Layout, neighbors: Mapping[str, Sequence[str]] | None = None
    ) -> "Graphical":
        """A kernel with one block for each leaf of the parameters, and neighbourhoods given by the leaves' names.

        Args:
            scalar: the local kernel.
            layout: the positions of the leaves, `Layout.of(one_particle)`.
            neighbors: the names of the other leaves that a leaf's kernel depends on; none for leaves not listed.
        """
        neighbors = dict(neighbors or {})
        named = set(neighbors) | {near for nears in neighbors.values() for near in nears}
        if named - set(layout.names):
            raise ValueError(f"`neighbors` names {sorted(named - set(layout.names))}, not among {layout.names}.")
        indices = {name: list(range(positions.start, positions.stop)) for name, positions in layout.slices.items()}
        neighbor_indices = [[i for near in neighbors.get(name, ()) for i in indices[near]] for name in layout.names]
        return cls(scalar, [indices[name] for name in layout.names], neighbor_indices)

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        def one(scalar: AbstractScalarKernel, index: Array, inside: Array) -> Array:
            return scalar.profile(jnp.sum(jnp.where(inside, x[index] - y[index], 0) ** 2))[0]

        values = self._over_blocks(one)
        return jnp.diag(values[self._owners()[0]])

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        def one(scalar: AbstractScalarKernel, index: Array, inside: Array) -> Array:
            local = Scored(_local(source.points, index, inside), source.scores[:, index], source.weights)
            return radial_velocity(scalar, _local(at, index, inside), local)

        block, position = self._owners()
        return self._over_blocks(one)[block, :, position].T  # of every block the coordinates that belong to it

    def adapt(self, points: Points) -> "Graphical":
        def one(scalar: AbstractScalarKernel, index: Array, inside: Array) -> AbstractScalarKernel:
            return scalar.adapt(_local(points, index, inside))

        adapted = self._over_blocks(one)
        return eqx.tree_at(lambda kernel: kernel.scalar, self, adapted)

    def check(self, dimension: int) -> None:
        if dimension != self.dimension:
            raise ValueError(f"`blocks` must cover the {dimension} coordinates of the particles, got {self.dimension}.")

    def _over_blocks(self, function: Callable[[AbstractScalarKernel, Array, Array], Any]) -> Any:
        """`function(scalar, index, inside)` of every block, as one batch.

        Neighbourhoods of different sizes are padded to the largest. A bandwidth for every block is split among the
        blocks; a single bandwidth is shared.
        """
        width = max(map(len, self.around))
        index = np.array([members + (0,) * (width - len(members)) for members in self.around])
        inside = np.array([[True] * len(members) + [False] * (width - len(members)) for members in self.around])
        axes = jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, self.scalar)
        return jax.vmap(function, (axes, 0, 0))(self.scalar, jnp.asarray(index), jnp.asarray(inside))

    def _owners(self) -> tuple[np.ndarray, np.ndarray]:
        """For every coordinate the block it belongs to and its position in the block's neighbourhood."""
        owners = {i: (b, position) for b, block in enumerate(self.blocks) for position, i in enumerate(block)}
        pairs = np.array([owners[i] for i in range(len(owners))])
        return pairs[:, 0], pairs[:, 1]

    @property
    def dimension(self) -> int:
        """The number of coordinates d."""
        return sum(map(len, self.blocks))


def _local(points: Points, index: Array, inside: Array) -> Array:
    return jnp.where(inside[None, :], points[:, index], 0)
