"""Particles spread over several devices, of one or several processes."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..core.identity import array_digest
from ..core.multihost import put_on_devices, same_everywhere
from ..core.types import Points, PyTree
from ..kernels.radial.ring import AXIS


def device_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh for `fit(..., mesh=...)`: the devices over which particles are spread.

    Args:
        devices: the devices to use; by default all devices of all processes.
    """
    return Mesh(np.array(jax.devices() if devices is None else devices), (AXIS,))


def spread(points: Points, mesh: Any, key_and_data: PyTree) -> Points:
    """Put each device's share of the particles on it; `ValueError` where they cannot be spread evenly.

    Args:
        points: all particles, in every process.
        mesh: from `device_mesh`.
        key_and_data: the key and the data, which must also be the same in every process.
    """
    if not isinstance(mesh, Mesh) or mesh.axis_names != (AXIS,) or mesh.axis_types != (AxisType.Auto,):
        raise ValueError(f"`mesh` must be a mesh with one automatic axis {AXIS!r}: `device_mesh()`, got {mesh!r}.")
    if points.shape[0] % mesh.size:
        raise ValueError(
            f"`mesh` must spread the particles evenly: {points.shape[0]} particles over {mesh.size} devices are "
            f"{points.shape[0] % mesh.size} too many. Add {-points.shape[0] % mesh.size}, or leave devices out."
        )
    if several_processes(mesh):
        processes = len({device.process_index for device in mesh.devices.flat})
        if processes < jax.process_count():
            raise ValueError(
                f"`mesh` must hold devices of one process or of all {jax.process_count()}, got those of {processes}. "
                "Take `device_mesh()`."
            )
        for name, value in (("particles", points), ("key and data", key_and_data)):
            if not same_everywhere(True, array_digest(value)):
                raise ValueError(
                    f"`{name}` must be the same in every process: each puts its own share of the same particles on its "
                    "devices. Draw and read them in the same way everywhere."
                )
    return put_on_devices(points, NamedSharding(mesh, PartitionSpec(AXIS)))


def several_processes(mesh: Mesh | None) -> bool:
    """Whether the mesh has devices of several processes."""
    return mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1


@contextmanager
def explain_lost_process(mesh: Mesh | None) -> Iterator[None]:
    """Replace JAX's runtime errors, where several processes take part, by one that names the loss of a process."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not several_processes(mesh) or "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise RuntimeError(
            f"process {jax.process_index()} of {jax.process_count()} cannot continue: another process of the run has "
            "most likely ended; see its last message. With `checkpoint=` the same call, in as many new processes, "
            f"continues from the last checkpoint. JAX says: {error}"
        ) from error


def within(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """A context that sets the mesh for compilation and execution; without a mesh it does nothing."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)
