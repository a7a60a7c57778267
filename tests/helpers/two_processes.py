"""Run by `test_processes` twice at once, as process 0 and process 1 of one run with two devices each.

Each prints what it found: a velocity, the particles of fits. Then both begin a fit in which process 1 is killed,
without a word to anyone.
"""

import json
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core.multihost import on_host, put_on_devices
from steinkern.core.particles import Scored

N, D, STEPS, KILLED_AT = 32, 2, 10, 6
SAMPLER = sk.svgd()


def log_density(x):
    return -0.5 * jnp.sum(jnp.arange(1.0, x.size + 1, dtype=x.dtype) * (x - 1) ** 2)


def start():
    # NumPy's, which do not depend on how a program was compiled, to the last bit.
    return jnp.asarray(np.random.default_rng(0).normal(size=(N, D)))


def velocity(place=lambda leaf: leaf):
    """The velocity of the first particles, each array put where `place` says."""
    points = start()
    given = Scored(points, jax.vmap(jax.grad(log_density))(points), jax.nn.softmax(points[:, 0]))
    kernel = sk.kernels.Isotropic(sk.RBF()).adapt(points)
    return jax.jit(lambda some: kernel.velocity(some.points, some))(jax.tree.map(place, given))


def fit(steps=STEPS, particles=None, callback=None, **options):
    first = start() if particles is None else particles
    return sk.fit(
        jr.key(1), log_density, SAMPLER, first, num_steps=steps, record_particles=True, callback=callback, **options
    )


def refusals(mesh, directory: Path) -> list[str]:
    """What is said of particles that differ between processes, and of a directory that they do not share."""
    said = []
    for options in (
        {"particles": start() + jax.process_index()},
        {"checkpoint": directory / ("whole", "own")[jax.process_index()], "checkpoint_every": 2},
    ):
        try:
            fit(mesh=mesh, **options)
        except ValueError as error:
            said.append(str(error))
    return said


def main(process_id: int, port: str, directory: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(
        f"127.0.0.1:{port}", 2, process_id, heartbeat_timeout_seconds=20, shutdown_timeout_seconds=60
    )
    mesh = sk.device_mesh()
    assert (mesh.size, jax.process_count()) == (4, 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("particles"))
    with jax.set_mesh(mesh):
        spread = velocity(lambda leaf: put_on_devices(np.asarray(leaf), sharding))
    assert not spread.is_fully_addressable
    together = fit(checkpoint=directory / "whole", checkpoint_every=2, mesh=mesh)
    found = {
        "velocity": on_host(spread).tolist(),
        "fit": together.points.tolist(),
        "longer fit": fit(2, together, mesh=mesh).points.tolist(),
        "recorded": on_host(together.history.particles).tolist(),
        "summary": together.summary(),
        "refusals": refusals(mesh, directory),
    }
    print(json.dumps(found), flush=True)

    def kill(step, state, info):
        if step == KILLED_AT and process_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    fit(callback=kill, checkpoint=directory / "killed", checkpoint_every=2, mesh=mesh)
    print("the run went on without process 1", flush=True)
