"""How often a step applies its metrics, which for the metrics of networks is most of what it costs."""

import jax
import jax.numpy as jnp
import pytest

import steinkern as sk

pytestmark = pytest.mark.thorough

ROWS, COLUMNS, PARTICLES = 12, 16, 6
TRANSFORM = 2 * ROWS * COLUMNS * (ROWS + COLUMNS)
"""Floating-point operations of A V B."""


def metrics(number: int):
    """Kronecker products as the samplers keep them, as one batch."""

    def one(scale):
        left, right = (sk.linalg.Dense(scale * jnp.eye(size) + 0.1) for size in (ROWS, COLUMNS))
        return sk.linalg.Kronecker(left, right, bias=True).factorize(0.1)

    return jax.vmap(one)(jnp.linspace(1.0, 2.0, number))


KERNELS = {
    "average": (1, lambda points, metric: sk.kernels.Preconditioned(sk.RBF(2.0), jax.tree.map(lambda x: x[0], metric))),
    "mixture": (
        PARTICLES,
        lambda points, metric: sk.kernels.Mixture.of(sk.kernels.Isotropic(sk.RBF(2.0)), metric, points, points, 3.0),
    ),
}
"""The anchors, and the kernel of a batch of metrics."""


@pytest.mark.parametrize("name", KERNELS)
def test_a_velocity_applies_every_metric_twice_to_every_particle(name, generator):
    """The rest is small beside it. Operations are counted before compilation, so none are shared by luck."""
    anchors, kernel_of = KERNELS[name]

    def velocity(points, scores, metric):
        return kernel_of(points, metric).velocity(points, sk.kernels.Scored.uniform(points, scores))

    points, scores = jnp.asarray(generator.standard_normal((2, PARTICLES, ROWS * COLUMNS)))
    flops = jax.jit(velocity).lower(points, scores, metrics(anchors)).cost_analysis()["flops"]
    assert 2 <= flops / (anchors * PARTICLES * TRANSFORM) < 2.9
