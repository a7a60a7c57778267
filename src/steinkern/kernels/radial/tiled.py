"""The sums tile by tile: memory linear in the number of points, on any device, in any dtype."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.particles import Scored

ROWS, COLUMNS = 1024, 2048
"""The size of a tile, whose distances and kernel values stay in the caches of a CPU."""


def over_tiles(
    sums: Callable[[Float[Array, "rows d"], Scored], Any],
    at: Float[Array, "m d"],
    source: Scored,
    rows: int = ROWS,
    columns: int = COLUMNS,
) -> Any:
    """`sums(at, source)` in tiles, for a pytree of sums over sources with one row for each row of `at`.

    Args:
        sums: computes the sums of one tile.
        at: the rows.
        source: the sources.
        rows: the most rows of a tile.
        columns: the most sources of a tile.
    """
    m, n = at.shape[0], source.points.shape[0]
    rows, columns = _even(m, rows), _even(n, columns)
    parts = jax.tree.map(lambda leaf: _tiles(leaf, columns), source)  # padded sources have weight zero

    def sum_over_parts(tile: Float[Array, "rows d"]) -> Any:
        def add(total: Any, part: Scored) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, sums(tile, part)), None

        first = jax.tree.map(lambda leaf: leaf[0], parts)
        shapes = jax.eval_shape(sums, tile, first)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, zero, parts)[0]

    tiles = jax.lax.map(sum_over_parts, _tiles(at, rows))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:m], tiles)


def _even(number: int, limit: int) -> int:
    """The tile size with the least padding for the fewest tiles of at most `limit`."""
    return -(-number // max(1, -(-number // limit))) or 1


def _tiles(array: Array, size: int) -> Array:
    """Reshape (n, …) to (tiles, size, …), the last tile padded with zeros, which are valid points."""
    padding = -array.shape[0] % size
    padded = jnp.pad(array, ((0, padding),) + ((0, 0),) * (array.ndim - 1))
    return padded.reshape(-1, size, *array.shape[1:])
