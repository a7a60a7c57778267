"""Particles spread over several devices, of one or several processes."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..core.description import fingerprint
from ..core.multihost import put_on_devices, same_everywhere
from ..core.types import Points, PyTree, check_count
from ..kernels.radial.ring import AXIS


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    initialization_timeout: int = 300,
    heartbeat_timeout: int = 100,
    shutdown_timeout: int = 300,
) -> None:
    """Join this process to others that run the same program, by `jax.distributed.initialize` with checked arguments.

    Call it in every process before anything else uses JAX's devices. `device_mesh()` then holds the devices of all
    processes, and `fit(..., mesh=device_mesh())` spreads the particles over them. Under SLURM, Open MPI, Kubernetes and
    on cloud TPUs JAX finds the first three arguments itself.

    Args:
        coordinator_address: "host:port" of process 0, to which the others connect.
        num_processes: the number of processes.
        process_id: the number of this process, from 0.
        initialization_timeout: seconds to wait for all processes. Where some are missing JAX ends this process, with a
            message that names the deadline.
        heartbeat_timeout: seconds without a heartbeat after which a process counts as lost. JAX then ends the others,
            with a message that says so.
        shutdown_timeout: seconds for which a process that has finished waits for the others.

    Raises:
        ValueError: the arguments do not fit together.
        RuntimeError: JAX was already used in this process, process 0 cannot be reached, or its port is taken.
    """
    given = {"coordinator_address": coordinator_address, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < 3:
        raise ValueError(
            f"`{missing[0]}` must be given where {' and '.join(f'`{n}`' for n in given if n not in missing)} "
            f"{'is' if len(missing) == 2 else 'are'}. Give all three, or none and let JAX find them from the cluster."
        )
    if coordinator_address is not None and num_processes is not None and process_id is not None:
        _check_address(coordinator_address)
        check_count("num_processes", num_processes)
        check_count("process_id", process_id, least=0)
        if process_id >= num_processes:
            raise ValueError(
                f"`process_id` must be below `num_processes`, {num_processes}, got {process_id}: they count from 0."
            )
    seconds = {
        "initialization_timeout": initialization_timeout,
        "heartbeat_timeout": heartbeat_timeout,
        "shutdown_timeout": shutdown_timeout,
    }
    for name, value in seconds.items():
        check_count(name, value)
    if coordinator_address is not None and process_id != 0:
        _wait_for(coordinator_address, initialization_timeout)
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            initialization_timeout=initialization_timeout,
            heartbeat_timeout_seconds=heartbeat_timeout,
            shutdown_timeout_seconds=shutdown_timeout,
        )
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(
            f"JAX could not start process {process_id} of {num_processes} at `coordinator_address` "
            f"{coordinator_address}. Is the port free, and has every process a number of its own? JAX says: {error}"
        ) from error
    except ValueError as error:
        if not missing:
            raise
        raise ValueError(
            "`coordinator_address`, `num_processes` and `process_id` must be given here: JAX found no cluster that "
            f"tells them ({error})."
        ) from error


def device_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh for `fit(..., mesh=...)`: the devices over which particles are spread.

    Args:
        devices: the devices to use; by default all devices of all processes.
    """
    return Mesh(np.array(jax.devices() if devices is None else devices), (AXIS,))


def spread(points: Points, mesh: Any, given: PyTree) -> Points:
    """Put each device's share of the particles on it; `ValueError` where they cannot be spread evenly.

    Args:
        points: all particles, in every process.
        mesh: from `device_mesh`.
        given: the key and the data, which must also be the same in every process.
    """
    if not isinstance(mesh, Mesh) or mesh.axis_names != (AXIS,) or mesh.axis_types != (AxisType.Auto,):
        raise ValueError(f"`mesh` must be a mesh with one automatic axis {AXIS!r}: `device_mesh()`, got {mesh!r}.")
    if points.shape[0] % mesh.size:
        raise ValueError(
            f"`mesh` must spread the particles evenly: {points.shape[0]} particles over {mesh.size} devices are "
            f"{points.shape[0] % mesh.size} too many. Add {-points.shape[0] % mesh.size}, or leave devices out."
        )
    if several_processes(mesh):
        _check_processes(mesh)
        for name, value in (("particles", points), ("key and data", given)):
            if not same_everywhere(True, fingerprint(value)):
                raise ValueError(
                    f"`{name}` must be the same in every process: each puts its own share of the same particles on its "
                    "devices. Draw and read them in the same way everywhere."
                )
    return put_on_devices(points, NamedSharding(mesh, PartitionSpec(AXIS)))


def several_processes(mesh: Mesh | None) -> bool:
    """Whether the mesh has devices of several processes."""
    return mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1


@contextmanager
def loss_of_a_process(mesh: Mesh | None) -> Iterator[None]:
    """Replace JAX's runtime errors, where several processes take part, by one that names the loss of a process."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not several_processes(mesh) or "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise RuntimeError(
            f"process {jax.process_index()} of {jax.process_count()} cannot go on: another process of the run has most "
            "likely ended; see its last message. With `checkpoint=` the same call, in as many new processes, goes on "
            f"from the last checkpoint. JAX says: {error}"
        ) from error


def within(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """A context that sets the mesh for compilation and execution; without a mesh it does nothing."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def _check_address(address: Any) -> None:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f'`coordinator_address` must be "host:port" of process 0, such as "10.0.0.1:12345", got {address!r}.'
        )


def _wait_for(address: str, seconds: int) -> None:
    """Wait until the address accepts connections, since JAX ends the process where its own wait times out."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise RuntimeError(
                    f"no process answered at `coordinator_address` {address} within {seconds} s ({error}). Is process "
                    "0 running, and can this machine reach it?"
                ) from error
        time.sleep(0.1)


def _check_processes(mesh: Mesh) -> None:
    taking_part = {device.process_index for device in mesh.devices.flat}
    if len(taking_part) < jax.process_count():
        raise ValueError(
            f"`mesh` must hold devices of one process or of all {jax.process_count()}, got those of "
            f"{len(taking_part)}. Take `device_mesh()`."
        )
