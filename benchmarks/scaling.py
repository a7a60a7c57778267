"""Particles over 1, 2, 4 and 8 virtual devices of one CPU: is the velocity the same, and what does a device hold?

Strong scaling spreads the same particles over more devices, weak scaling gives each device as many as before. Memory is
what the compiled program needs on a device: arguments, results and everything between, by XLA's own account. The
velocity is compared with that of one device in float64, on fewer particles, in the same tiles and round the same ring.
Nothing is timed: the virtual devices share the cores of one machine, so time would mean nothing.
"""

from argparse import Namespace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import steinkern as sk
from steinkern.core.particles import Scored
from steinkern.kernels.radial import radial_velocity

from .bench import Answer, Benchmark, Row, gigabytes_of, relative_error

DEVICES = (1, 2, 4, 8)
D = 50
COMPARED = 16
"""The velocity is compared on n divided by this: it is computed on one machine."""


def velocity(points: Any, scores: Any, weights: Any) -> Any:
    """In tiles, whatever the number of particles: what a device with many of them does."""
    return radial_velocity(sk.RBF(float(D)), points, Scored(points, scores, weights), backend="tiled")


def gigabytes(n: int, devices: int) -> float:
    """What a device needs for a velocity of n particles in float32."""
    mesh = sk.device_mesh(jax.devices()[:devices])
    sharding = NamedSharding(mesh, PartitionSpec("particles"))
    rows = jax.ShapeDtypeStruct((n, D), jnp.float32, sharding=sharding)
    weights = jax.ShapeDtypeStruct((n,), jnp.float32, sharding=sharding)
    with jax.set_mesh(mesh):
        return gigabytes_of(jax.jit(velocity).lower(rows, rows, weights).compile())


def error_of(n: int, devices: int) -> float:
    """Of a velocity in float64 against one device, over its largest entry."""
    mesh = sk.device_mesh(jax.devices()[:devices])
    sharding = NamedSharding(mesh, PartitionSpec("particles"))
    points = jr.normal(jr.key(0), (n, D), jnp.float64)
    arrays = points, -points / 2, jnp.full(n, 1 / n)
    with jax.set_mesh(mesh):
        spread = jax.jit(velocity)(*(jax.device_put(array, sharding) for array in arrays))
    assert spread.sharding.is_equivalent_to(sharding, 2)
    return relative_error(np.asarray(spread), np.asarray(jax.jit(velocity)(*arrays)))


def run(case: str, method: str, options: Namespace) -> Answer:
    """Memory and error."""
    n, _, devices = (int(part.split("=")[1]) for part in case.split(",")[1:])
    numbers = {"gigabytes": gigabytes(n, devices), "relative_error": error_of(n // COMPARED, devices)}
    return Answer([Row(case, method, metric, value) for metric, value in numbers.items()])


SIZES = {"strong": [65_536] * len(DEVICES), "weak": [16_384 * devices for devices in DEVICES]}
BENCHMARKS = {
    "scaling": Benchmark(
        [
            (f"{kind},n={n},d={D},devices={devices}", "vanilla")
            for kind, sizes in SIZES.items()
            for n, devices in zip(sizes, DEVICES, strict=True)
        ],
        run,
        precision="float64",
        environment={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={max(DEVICES)}"},
    )
}
