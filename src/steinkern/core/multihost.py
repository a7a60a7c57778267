"""Arrays and answers that several processes share.

An array that lies on the devices of several processes can be read by none of them alone, and what one process decides
the others must decide too: every one of them has to take part in the same computations in the same order.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils


def on_host(array: Any) -> np.ndarray:
    """An array's numbers as NumPy has them, gathered where other processes hold some: then all must ask for them."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def placed_like(array: np.ndarray, reference: Any) -> jax.Array:
    """An array that every process has, on the devices where `reference` is and in the same shares."""
    sharding = getattr(reference, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1:
        return jnp.asarray(array)
    return placed(array, sharding)


def placed(array: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array that every process has, in shares: each process puts those of its own devices there."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    numbers = on_host(array)
    return jax.make_array_from_callback(numbers.shape, sharding, lambda part: numbers[part])


def is_writer(several: bool) -> bool:
    """Whether this process writes files and shows a progress bar: of `several` that share a run, process 0 does."""
    return not several or jax.process_index() == 0


def any_process(several: bool, *answers: bool) -> list[bool]:
    """For each answer whether some process gave it; without `several` processes, the answers themselves."""
    return [bool(column.any()) for column in _all_of(answers).T] if several else list(answers)


def same_everywhere(several: bool, text: str) -> bool:
    """Whether all processes have the same text, such as a digest."""
    letters = np.frombuffer(text.encode(), np.uint8)
    return not several or bool((_all_of(letters) == letters[None, :]).all())


def _all_of(values: Any) -> np.ndarray:
    """(processes, …) what each of them has."""
    return np.asarray(multihost_utils.process_allgather(np.asarray(values)))
