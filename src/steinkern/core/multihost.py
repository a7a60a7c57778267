"""Arrays and decisions that several processes share.

No process can read an array that lies on the devices of several. All processes run the same computations in the same
order, so every decision must be the same on all of them.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from .types import PyTree


def prefetch(arrays: PyTree) -> None:
    """Start copying arrays to the host, so that the calls of `on_host` that follow do not wait one after another."""
    for array in jax.tree.leaves(arrays):
        if isinstance(array, jax.Array):
            array.copy_to_host_async()


def on_host(array: Any) -> np.ndarray:
    """An array as NumPy. Shards of other processes are gathered, so every process must make this call."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def placed_like(array: np.ndarray, reference: Any) -> jax.Array:
    """Put an array, which every process has, on the devices of `reference` with the same sharding."""
    sharding = getattr(reference, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1:
        return jax.device_put(array)
    return put_on_devices(array, sharding)


def put_on_devices(array: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Put an array, which every process has, on devices: each process writes the shards of its devices."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    numbers = on_host(array)
    return jax.make_array_from_callback(numbers.shape, sharding, lambda part: numbers[part])


def is_writer(several: bool) -> bool:
    """Whether this process writes files and shows a progress bar: process 0 where `several` processes share a run."""
    return not several or jax.process_index() == 0


def largest(several: bool, *numbers: Any) -> list[Any]:
    """The largest of each number over all processes; the numbers themselves unless `several` processes run."""
    return _gather(numbers).max(axis=0).tolist() if several else list(numbers)


def same_everywhere(several: bool, text: str) -> bool:
    """Whether all processes have the same text, such as a digest."""
    code = np.frombuffer(text.encode(), np.uint8)
    return not several or bool((_gather(code) == code[None, :]).all())


def _gather(values: Any) -> np.ndarray:
    """The values of every process, (processes, …)."""
    return np.asarray(multihost_utils.process_allgather(np.asarray(values)))
