"""How `sample` evaluates a target at many points: loops of unknown length, and Hessians in chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.sample.evaluation import Evaluator
from steinkern.inference.sample.randomness import even_noise


@jax.custom_vjp
def root(x):
    """√x by Newton's method; like a solver of differential equations, with a derivative in reverse mode only."""
    return jax.lax.while_loop(lambda y: y * y - x > 1e-14 * x, lambda y: (y + x / y) / 2, 1 + x)


def root_forward(x):
    y = root(x)
    return y, y


root.defvjp(root_forward, lambda y, cotangent: (cotangent / (2 * y),))


def evaluator_of(function, n, d):
    target = sk.LogDensity(function).bind(jnp.zeros(d))
    return Evaluator(target, jnp.zeros(d), even_noise(np.random.default_rng(0), n, d), None)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="points are evaluated together on other devices")
def test_no_point_waits_for_the_loop_of_another():
    turns = []

    def log_density(x):
        def turn(y):
            jax.debug.callback(lambda: turns.append(1))
            return 2 * y

        size = jax.lax.while_loop(lambda y: y < jax.lax.stop_gradient(jnp.sum(x**2)), turn, jnp.ones((), x.dtype))
        return -0.5 * jnp.sum(x**2) - 0 * size

    target = sk.LogDensity(log_density).bind(jnp.zeros(1))
    points = jnp.array([[0.0], [3.0], [30.0]])  # 0, 4 and 10 doublings of 1 reach 0, 9 and 900
    values, scores = jax.block_until_ready(target.values_and_scores(points))
    jax.effects_barrier()
    assert len(turns) == 14
    np.testing.assert_allclose(values, -0.5 * points[:, 0] ** 2)
    np.testing.assert_allclose(scores, -points)


@pytest.mark.parametrize("inner", [root, jnp.sqrt])
@pytest.mark.parametrize("d", [3, 32])
def test_values_scores_and_the_mean_curvature_are_those_of_the_formula(inner, d):
    evaluator = evaluator_of(lambda x: -inner(1 + jnp.sum(x**2)) - 0.1 * jnp.sum(x**4), 100, d)
    points = 2 * evaluator.noise
    cloud, curvature = evaluator.derivatives(points)

    def formula(x):
        return -jnp.sqrt(1 + jnp.sum(x**2)) - 0.1 * jnp.sum(x**4)

    values, scores = jax.vmap(jax.value_and_grad(formula))(jnp.asarray(points))
    np.testing.assert_allclose(cloud.log_densities, values, rtol=1e-9)
    np.testing.assert_allclose(cloud.scores, scores, rtol=1e-9, atol=1e-12)
    hessians = jax.vmap(jax.hessian(formula))(jnp.asarray(points))
    np.testing.assert_allclose(curvature, -hessians.mean(axis=0), rtol=1e-9, atol=1e-12)
