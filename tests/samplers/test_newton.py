"""Stein variational Newton, Eq. (19): its matrices and direction by definition, and its fixed points."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import steinkern as sk
from steinkern.kernels import reference
from steinkern.linalg.metrics import DenseMetric, DiagonalMetric
from steinkern.samplers.newton import newton_matrices, newton_velocity
from tests.helpers.cases import random_positive_definite, random_scored
from tests.helpers.oracles import assert_close

pytestmark = pytest.mark.thorough

# Compiling these takes longer than running them.
jit = partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0})
N, D = 6, 3
METRICS = {
    "identity metric": DiagonalMetric(jnp.ones(D)),
    "dense metric": DenseMetric.of(jnp.array([[2.0, 0.4, -0.3], [0.4, 1.0, 0.2], [-0.3, 0.2, 0.5]])),
}
metrics = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
kernels = pytest.mark.parametrize("kernel", [sk.RBF(1.3), sk.IMQ(0.7)], ids=["rbf", "imq"])


@jit
def problem(key):
    """Particles with scores, and a Hessian at each."""
    source_key, hessian_key = jr.split(key)
    return random_scored(source_key, N, D), jax.vmap(lambda k: random_positive_definite(k, D))(jr.split(hessian_key, N))


def value(kernel, metric, x, y):
    """k(‖x − y‖²_Q)."""
    return kernel.profile(metric.quadratic(x - y))[0]


@metrics
@kernels
def test_newton_matrices_are_those_of_the_definition(kernel, metric, key):
    source, hessians = problem(key)
    matrices = jit(newton_matrices)(kernel, metric, source, hessians)
    value_and_gradient = jit(jax.value_and_grad(lambda own, other: value(kernel, metric, other, own)))
    for i in range(N):
        expected = jnp.zeros((D, D))
        for j in range(N):
            k, gradient = value_and_gradient(source.points[i], source.points[j])
            expected += source.weights[j] * (hessians[j] * k**2 + jnp.outer(gradient, gradient))
        assert_close(matrices[i], expected)


@jit
def damped_product_and_velocity(kernel, metric, source, hessians, damping):
    """(H̃_i + damping × scale × I) times the Newton direction, and the velocity of k(‖x − y‖²_Q) I by definition."""
    standard = reference.stein_velocity(lambda x, y: value(kernel, metric, x, y) * jnp.eye(D), source.points, source)
    matrices = newton_matrices(kernel, metric, source, hessians)
    scale = jnp.trace(matrices, axis1=1, axis2=2) / D
    damped = matrices + damping * scale[:, None, None] * jnp.eye(D)[None]
    direction = newton_velocity(kernel, metric, source, hessians, damping)
    return jnp.einsum("nij,nj->ni", damped, direction), standard


@metrics
@kernels
@pytest.mark.parametrize("damping", [1e-9, 0.3])
def test_the_newton_direction_solves_for_the_velocity_of_the_scalar_kernel(kernel, metric, damping, key):
    source, hessians = problem(key)
    assert_close(*damped_product_and_velocity(kernel, metric, source, hessians, jnp.asarray(damping)))


@kernels
def test_where_every_newton_matrix_is_the_metric_it_is_constant_preconditioning(kernel, key):
    source, _ = problem(key)
    metric = METRICS["dense metric"]
    matrix = metric.root.T @ metric.root

    @jit
    def both(source):
        # Choose the Hessians so that Σ_j w_j k_ij² H_j + Σ_j w_j ∇k∇kᵀ = Q for every i: n linear equations.
        squares = jax.vmap(lambda x: jax.vmap(lambda y: value(kernel, metric, x, y) ** 2)(source.points))(source.points)
        slopes = newton_matrices(kernel, metric, source, jnp.zeros((N, D, D)))
        right = (matrix[None] - slopes).reshape(N, D * D)
        hessians = jnp.linalg.solve(squares * source.weights[None, :], right).reshape(N, D, D)
        direction = newton_velocity(kernel, metric, source, hessians, 1e-14)
        return direction, sk.kernels.Preconditioned(sk.kernels.Isotropic(kernel), metric).velocity(
            source.points, source
        )

    assert_close(*both(source), rtol=1e-8)  # Eq. (14); the linear equations cost a few digits


@metrics
def test_a_single_particle_takes_a_newton_step(metric, key):
    source, hessians = problem(key)
    alone = sk.kernels.Scored(source.points[:1], source.scores[:1], jnp.ones(1))
    direction = jit(newton_velocity)(sk.RBF(1.3), metric, alone, hessians[:1], jnp.asarray(1e-14))
    assert_close(direction[0], jnp.linalg.solve(hessians[0], alone.scores[0]))
