"""The kernel 1 + xᵀy on a Gaussian: n ≥ d + 1 particles rest at its exact mean and covariance (Liu and Wang, 2018)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.linalg.metrics import DenseMetric

D = 3
MEAN = jnp.array([1.0, -0.5, 2.0])
PRECISION = jnp.array([[2.0, 0.4, -0.3], [0.4, 1.0, 0.2], [-0.3, 0.2, 0.5]])
OTHER = jnp.array([[1.0, -0.2, 0.1], [-0.2, 0.7, 0.0], [0.1, 0.0, 1.5]])
KERNELS = {
    "linear": sk.kernels.Linear(),
    "linear, another offset": sk.kernels.Linear(0.3),
    "preconditioned by the precision": sk.kernels.Preconditioned(sk.kernels.Linear(), DenseMetric.of(PRECISION)),
    "preconditioned by another matrix": sk.kernels.Preconditioned(sk.kernels.Linear(), DenseMetric.of(OTHER)),
}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def assert_close(actual, expected, tolerance):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=False)


def log_density(x):
    return -0.5 * jnp.vdot(x - MEAN, PRECISION @ (x - MEAN))


@eqx.filter_jit
def transported(kernel, points, num_steps):
    target, sampler = sk.LogDensity(log_density).bind(points[0]), sk.svgd(kernel, optax.sgd(0.05))

    def move(_, state):
        return sampler.step(jr.key(0), state, target)[0]

    return jax.lax.fori_loop(0, num_steps, move, sampler.init(target, points)).points


@kernels
@pytest.mark.parametrize("n", [D + 1, 9])
def test_particles_rest_at_the_exact_mean_and_covariance(kernel, n, key):
    points = transported(kernel, jr.normal(key, (n, D)), jnp.asarray(20_000))
    mean, covariance = jnp.mean(points, axis=0), jnp.cov(points.T, bias=True)
    assert_close(mean, MEAN, 1e-8)
    assert_close(covariance, jnp.linalg.inv(PRECISION), 1e-8)


@kernels
def test_particles_with_the_exact_mean_and_covariance_do_not_move(kernel, key):
    start = jr.normal(key, (9, D))
    centered = start - jnp.mean(start, axis=0, keepdims=True)
    white = jnp.linalg.qr(centered)[0] * jnp.sqrt(9.0)  # mean 0, covariance I
    points = MEAN[None, :] + white @ jnp.linalg.cholesky(jnp.linalg.inv(PRECISION)).T
    assert jnp.max(jnp.abs(transported(kernel, start, jnp.asarray(1)) - start)) > 1e-3
    assert_close(transported(kernel, points, jnp.asarray(1)), points, 1e-12)


def test_particles_in_a_plane_stay_in_a_plane(key):
    # The velocity is affine in x, so d particles in d dimensions cannot leave the plane that they span.
    points = transported(sk.kernels.Linear(), jr.normal(key, (D, D)), jnp.asarray(20_000))
    values = jnp.linalg.eigvalsh(jnp.cov(points.T, bias=True))
    assert jnp.abs(values[0]) < 1e-12 < 1e-2 < values[1]
