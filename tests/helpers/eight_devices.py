"""Run by `test_distributed` in a process of its own, which sees eight devices: prints what differs from one device."""

import json

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core.particles import Scored
from steinkern.kernels.radial import radial_divergence, radial_velocity
from tests.helpers.two_processes import log_density

N, D = 64, 3


def relative(found, truth) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) - np.asarray(truth, np.float64))) / np.max(np.abs(truth)))


def velocities(dtype) -> dict[str, float]:
    """The largest difference of a velocity, over its largest entry, by kernel."""
    mesh = sk.device_mesh()
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("particles"))
    points = jr.normal(jr.key(0), (N, D), dtype)
    alone = Scored(points, jax.vmap(jax.grad(log_density))(points), jax.nn.softmax(points[:, 0]))
    shared = jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), alone)
    metrics = jax.vmap(lambda scale: sk.linalg.Dense(scale * jnp.eye(D, dtype=dtype)).factorize(1e-6))(
        jnp.arange(1, 4, dtype=dtype)
    )
    first = jax.tree.map(lambda leaf: leaf[1], metrics)
    mixture = sk.kernels.Mixture.of(sk.kernels.Isotropic(sk.RBF()), metrics, points[:3], points)
    ways = {
        "rbf": sk.kernels.Isotropic(sk.RBF()).adapt(points),
        "imq in tiles": sk.kernels.Isotropic(sk.IMQ(), backend="tiled").adapt(points),
        "average": sk.kernels.Preconditioned(sk.RBF(), first).adapt(points),
        "mixture": mixture,
    }
    found = {}
    if dtype == jnp.float32:  # one is enough to see its rounding
        ways = {"rbf": ways["rbf"]}
    for name, kernel in ways.items():
        run = jax.jit(lambda some, kernel=kernel: kernel.velocity(some.points, some))
        with jax.set_mesh(mesh):
            spread = run(shared)
        assert spread.sharding.is_equivalent_to(sharding, 2), spread.sharding
        found[name] = relative(spread, run(alone))
    if dtype == jnp.float32:
        return found
    turn = jax.jit(lambda some: radial_divergence(sk.RBF(1.0), some.points, some))
    with jax.set_mesh(mesh):
        found["divergence"] = relative(turn(shared), turn(alone))
    discrepancy = jax.jit(lambda some: sk.mmd2(some.points, some.points[::-1] + 1))
    with jax.set_mesh(mesh):
        found["mmd2"] = relative(discrepancy(shared), discrepancy(alone))
    return found


def fits() -> dict[str, float]:
    """The same for the particles at the end of whole fits."""
    start = jr.normal(jr.key(1), (N, D))
    samplers = {
        "svgd": sk.svgd(),
        "mixture": sk.matrix_svgd("mixture", sk.Hessian(), optimizer=0.1, anchors=4),
    }
    found = {}
    for name, sampler in samplers.items():
        one, eight = (
            sk.fit(jr.key(0), log_density, sampler, start, num_steps=10, mesh=mesh) for mesh in (None, sk.device_mesh())
        )
        assert len(eight.points.sharding.device_set) == 8, name
        assert {shard.data.shape for shard in eight.points.addressable_shards} == {(N // 8, D)}, name
        found[name] = relative(eight.points, one.points)
    return found


def memory() -> dict[str, int]:
    """Bytes of a device beyond what it is given and gives: for eight times the particles on eight devices, and one."""
    mesh = sk.device_mesh()
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("particles"))

    def needed(n: int, place) -> int:
        points = jax.ShapeDtypeStruct((n, 64), jnp.float32, sharding=place)
        weights = jax.ShapeDtypeStruct((n,), jnp.float32, sharding=place)
        run = jax.jit(lambda x, w: radial_velocity(sk.RBF(1.0), x, Scored(x, x, w), backend="tiled"))
        return run.lower(points, weights).compile().memory_analysis().temp_size_in_bytes

    alone = needed(2**14, None)
    with jax.set_mesh(mesh):
        return {"one": alone, "eight": needed(2**17, sharding)}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    assert len(jax.devices()) == 8
    print(
        json.dumps(
            {
                "float64": velocities(jnp.float64),
                "float32": velocities(jnp.float32),
                "fits": fits(),
                "memory": memory(),
            }
        )
    )
