"""Particles spread over several devices."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ._types import Points
from .radial.ring import AXIS


def device_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh for `fit(..., mesh=...)`: the devices over which particles are spread.

    Args:
        devices: those to use; all that JAX sees by default.
    """
    return Mesh(np.array(jax.devices() if devices is None else devices), (AXIS,))


def spread(points: Points, mesh: Any) -> Points:
    """The particles, each device's share on it; a `ValueError` where that cannot be."""
    if not isinstance(mesh, Mesh) or mesh.axis_names != (AXIS,) or mesh.axis_types != (AxisType.Auto,):
        raise ValueError(f"`mesh` must be a mesh with one automatic axis {AXIS!r}: `device_mesh()`, got {mesh!r}.")
    if points.shape[0] % mesh.size:
        raise ValueError(
            f"`mesh` must spread the particles evenly: {points.shape[0]} particles over {mesh.size} devices are "
            f"{points.shape[0] % mesh.size} too many. Add {-points.shape[0] % mesh.size}, or leave devices out."
        )
    if jax.process_count() > 1:
        raise ValueError(f"`mesh` must be of one process, got {jax.process_count()}. Run on one machine.")
    return jax.device_put(points, NamedSharding(mesh, PartitionSpec(AXIS)))


def within(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """The mesh around what is compiled and run."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)
