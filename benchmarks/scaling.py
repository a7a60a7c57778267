"""Particles over 1, 2, 4 and 8 virtual devices of one CPU: is the velocity the same, and what does a device hold?

    python benchmarks/scaling.py [--json benchmarks/results/scaling.json]

Strong scaling spreads the same particles over more devices, weak scaling gives each device as many as before. Memory is
what the compiled program needs on a device: arguments, results and everything between, by XLA's own account. The
velocity is compared with that of one device in float64, on fewer particles, in the same tiles and round the same ring.
Nothing is timed: the virtual devices share the cores of one machine, so time would mean nothing.
"""

import argparse
import os
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import steinkern as sk
from steinkern.core.files import environment
from steinkern.core.particles import Scored
from steinkern.experiments.tables import Row, aligned, write_results
from steinkern.kernels.radial import radial_velocity

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
        memory = jax.jit(velocity).lower(rows, rows, weights).compile().memory_analysis()
    return sum(getattr(memory, f"{part}_size_in_bytes") for part in ("argument", "output", "temp")) / 1e9


def relative_error(n: int, devices: int) -> float:
    """Of a velocity in float64 against one device, over its largest entry."""
    mesh = sk.device_mesh(jax.devices()[:devices])
    sharding = NamedSharding(mesh, PartitionSpec("particles"))
    points = jr.normal(jr.key(0), (n, D), jnp.float64)
    given = (points, -points / 2, jnp.full(n, 1 / n))
    with jax.set_mesh(mesh):
        spread = jax.jit(velocity)(*(jax.device_put(array, sharding) for array in given))
    assert spread.sharding.is_equivalent_to(sharding, 2)
    truth = np.asarray(jax.jit(velocity)(*given))
    return float(np.max(np.abs(np.asarray(spread) - truth)) / np.max(np.abs(truth)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH, a table beside it")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows, lines = [], ["| | devices | particles | a device | memory a device | error |", "|---" * 6 + "|"]
    for kind, sizes in (("strong", [65_536] * 4), ("weak", [16_384 * devices for devices in DEVICES])):
        for devices, n in zip(DEVICES, sizes, strict=True):
            found = {"gigabytes": gigabytes(n, devices), "relative_error": relative_error(n // COMPARED, devices)}
            case = f"{kind},n={n},d={D},devices={devices}"
            rows += [Row(case, "vanilla", metric, value, float("nan"), 1) for metric, value in found.items()]
            lines.append(
                f"| {kind} | {devices} | {n:,} | {n // devices:,} | {1e3 * found['gigabytes']:.0f} MB | "
                f"{found['relative_error']:.1e} |"
            )
    text = "\n".join(lines) + "\n"
    print(aligned(text))
    if options.json:
        told = {
            **environment(),
            "device": "virtual devices of one CPU; their time means nothing and was not taken",
            "gigabytes": "float32, arguments, results and temporaries of a device, by XLA's account",
            "relative_error": f"float64, n / {COMPARED} particles, against one device, over the largest entry",
        }
        write_results(options.json, "scaling", told, rows)
        options.json.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
