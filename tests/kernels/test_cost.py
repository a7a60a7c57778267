"""How often a step applies its metrics, which for the metrics of networks is most of what it costs."""

import jax
import jax.numpy as jnp
import pytest

import steinkern as sk

ROWS, COLUMNS, PARTICLES = 12, 16, 6
TRANSFORM = 2 * ROWS * COLUMNS * (ROWS + COLUMNS)
"""Floating-point operations of A V B."""


def metrics(number: int):
    """Kronecker products as the samplers keep them, as one batch."""

    def one(scale):
        left, right = (sk.Dense(scale * jnp.eye(size) + 0.1) for size in (ROWS, COLUMNS))
        return sk.Kronecker(left, right, bias=True).factorise(0.1).without_roots()

    return jax.vmap(one)(1.0 + jnp.arange(number))


def of_average(points, metric) -> sk.AbstractMatrixKernel:
    return sk.Preconditioned(sk.RBF(), jax.tree.map(lambda leaf: leaf[0], metric)).adapt(points)


def of_mixture(points, metric) -> sk.AbstractMatrixKernel:
    return sk.Mixture.of(sk.Isotropic(sk.RBF()), metric, points, points, sk.Median())


@pytest.mark.thorough
@pytest.mark.parametrize(("kernel_of", "anchors"), [(of_average, 1), (of_mixture, PARTICLES)])
def test_a_step_applies_every_metric_twice_to_every_particle(kernel_of, anchors, generator):
    """Bandwidth, temperature, weights and velocity together: the rest is small beside it."""

    def velocity(points, scores, metric):
        return kernel_of(points, metric).velocity(points, sk.Scored.uniform(points, scores))

    points, scores = jnp.asarray(generator.standard_normal((2, PARTICLES, ROWS * COLUMNS)))
    cost = jax.jit(velocity).lower(points, scores, metrics(anchors)).compile().cost_analysis()
    flops = cost[0]["flops"] if isinstance(cost, list) else cost["flops"]  # by the version of JAX
    transforms = flops / (anchors * PARTICLES * TRANSFORM)
    assert 2 <= transforms < 2.9
