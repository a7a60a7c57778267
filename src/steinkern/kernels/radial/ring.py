"""The sums over sources that lie on several devices: blocks of them pass round a ring.

Every device keeps its own rows and adds up what the block that it holds gives them, then hands the block on. It never
holds more than its share of the particles and one block, and all devices compute all the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from ...core.particles import Scored

AXIS = "particles"
"""The name of the mesh axis over which particles are spread."""


def devices_in_ring(*counts: int) -> int:
    """Over how many devices the mesh around this call spreads particles; 1 where it cannot spread so many evenly."""
    mesh = jax.sharding.get_abstract_mesh()
    size = mesh.shape[AXIS] if AXIS in mesh.axis_names else 1
    return size if all(count % size == 0 for count in counts) else 1


def over_ring(
    sums: Callable[[Float[Array, "rows d"], Scored], Any], at: Float[Array, "m d"], source: Scored, devices: int
) -> Any:
    """`sums(at, source)`, a pytree with one row for each row of `at` that adds up over sources.

    Args:
        sums: the sums for the rows of one device and the sources of one.
        at: the rows.
        source: the sources.
        devices: how many there are, two or more.
    """
    onward = [(device, (device + 1) % devices) for device in range(devices)]

    def hand_on(block: Scored) -> Scored:
        return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, onward), block)

    def of_device(own: Float[Array, "rows d"], block: Scored) -> Any:
        def add(carry: tuple[Any, Scored], _: None) -> tuple[tuple[Any, Scored], None]:
            total, block = carry
            return (jax.tree.map(jnp.add, total, sums(own, block)), hand_on(block)), None

        (total, last), _ = jax.lax.scan(add, (sums(own, block), hand_on(block)), None, devices - 2)
        return jax.tree.map(jnp.add, total, sums(own, last))  # the last block is not handed on

    rows = PartitionSpec(AXIS)
    # Everything in it varies from device to device, so there is nothing to check; loops would have to say so.
    return jax.shard_map(of_device, in_specs=(rows, rows), out_specs=rows, check_vma=False)(at, source)
