"""The sums over sources on several devices: blocks of sources pass round a ring.

Every device keeps its rows, adds the sums over the block of sources that it holds, and sends the block to the next
device. It holds its share of the particles and one block, and no device waits.
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
    """The number of devices in the "particles" axis of the current mesh; 1 where it does not divide all `counts`."""
    mesh = jax.sharding.get_abstract_mesh()
    size = mesh.shape[AXIS] if AXIS in mesh.axis_names else 1
    return size if all(count % size == 0 for count in counts) else 1


def over_ring(
    sums: Callable[[Float[Array, "rows d"], Scored], Any], at: Float[Array, "m d"], source: Scored, devices: int
) -> Any:
    """`sums(at, source)` over a ring, for a pytree of sums over sources with one row for each row of `at`.

    Args:
        sums: computes the sums of one device's rows over one block of sources.
        at: the rows.
        source: the sources.
        devices: the number of devices, at least two.
    """
    onward = [(device, (device + 1) % devices) for device in range(devices)]

    def send_on(block: Scored) -> Scored:
        return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, onward), block)

    def sum_on_device(rows: Float[Array, "rows d"], block: Scored) -> Any:
        def add(carry: tuple[Any, Scored], _: None) -> tuple[tuple[Any, Scored], None]:
            total, block = carry
            return (jax.tree.map(jnp.add, total, sums(rows, block)), send_on(block)), None

        (total, last), _ = jax.lax.scan(add, (sums(rows, block), send_on(block)), None, devices - 2)
        return jax.tree.map(jnp.add, total, sums(rows, last))  # the last block is not sent on

    spread = PartitionSpec(AXIS)
    # All values vary over devices. With the check of replication every loop would need annotations.
    return jax.shard_map(sum_on_device, in_specs=(spread, spread), out_specs=spread, check_vma=False)(at, source)
