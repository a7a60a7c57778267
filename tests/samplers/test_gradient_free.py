"""Gradient-free SVGD: the kernel k w(x) w(y) I with w = ρ/p, in which the target's own score drops out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.kernels import reference
from tests.helpers.oracles import assert_close

pytestmark = pytest.mark.thorough

N, D = 7, 2
BASE = sk.kernels.Isotropic(sk.RBF(0.9))
SHIFT = 1.7


def log_density(x):
    return -0.5 * (x[0] - 1) ** 2 - (x[1] - 0.5 * x[0] ** 2) ** 2


def surrogate(x):
    return -0.25 * jnp.sum((x - 0.3) ** 2)


@eqx.filter_jit
def direction(function, guide, points, normalize, support=None):
    """The velocity with the surrogate `guide`, read off a plain step of size 1."""
    target = sk.LogDensity(function, support=support).bind(points[0] if support is None else jnp.exp(points[0]))
    sampler = sk.gradient_free_svgd(guide, BASE, optax.sgd(1.0), normalize=normalize)
    return sampler.step(jr.key(0), sampler.init(target, points), target)[0].points - points


@eqx.filter_jit
def stein_velocity(kernel, function, points):
    scores = jax.vmap(jax.grad(function))(points)
    return kernel.velocity(points, sk.kernels.Scored.uniform(points, scores))


def test_without_normalising_it_is_the_tilted_kernel_with_the_true_scores(key):
    points = jr.normal(key, (N, D))
    kernel = sk.kernels.Tilted(BASE, lambda x: surrogate(x) - log_density(x))
    assert_close(direction(log_density, surrogate, points, False), stein_velocity(kernel, log_density, points))


def test_a_constrained_target_and_its_surrogate_share_one_jacobian(key):
    points = jr.normal(key, (N, D))
    kernel = sk.kernels.Tilted(BASE, lambda u: surrogate(jnp.exp(u)) - log_density(jnp.exp(u)))
    expected = stein_velocity(kernel, lambda u: log_density(jnp.exp(u)) + jnp.sum(u), points)
    assert_close(direction(log_density, surrogate, points, False, sk.positive), expected)


def test_normalised_it_weighs_the_surrogates_particles_by_shares_of_one(key):
    points = jr.normal(key, (N, D))

    @jax.jit
    def expected(points):
        weights = jax.vmap(lambda x: jnp.exp(surrogate(x) - log_density(x)))(points)
        source = sk.kernels.Scored(points, jax.vmap(jax.grad(surrogate))(points), weights / jnp.sum(weights))
        return reference.stein_velocity(BASE, points, source)

    assert_close(direction(log_density, surrogate, points, True), expected(points))


@pytest.mark.parametrize("normalize", [True, False])
def test_the_target_as_its_own_surrogate_is_vanilla(normalize, key):
    points = jr.normal(key, (N, D))
    assert_close(direction(log_density, log_density, points, normalize), stein_velocity(BASE, log_density, points))


@pytest.mark.parametrize(("normalize", "factor"), [(True, 1.0), (False, np.exp(-2 * SHIFT))])
def test_an_unknown_constant_drops_out_only_where_weights_are_normalised(normalize, factor, key):
    points = jr.normal(key, (N, D))
    plain = direction(log_density, surrogate, points, normalize)
    assert_close(direction(lambda x: log_density(x) + SHIFT, surrogate, points, normalize), factor * plain)


@jax.custom_jvp
def not_differentiable(x):
    return log_density(x)


@not_differentiable.defjvp
def _refuse(primals, tangents):
    raise AssertionError("the target was differentiated")


@pytest.mark.parametrize("normalize", [True, False])
def test_a_step_never_differentiates_the_target(normalize, key):
    points = jr.normal(key, (N, D))
    actual = direction(not_differentiable, surrogate, points, normalize)
    assert_close(actual, direction(log_density, surrogate, points, normalize))


def test_a_fit_never_differentiates_the_target(key):
    points = jr.normal(key, (N, D))
    sampler = sk.gradient_free_svgd(surrogate, BASE, optax.sgd(1.0))
    result = sk.fit(key, not_differentiable, sampler, points, num_steps=1, progress=False)
    assert_close(result.points - points, direction(log_density, surrogate, points, True))


def two_modes(x):
    """½ N(−1.5, 0.5) + ½ N(1.5, 0.5): mean 0, variance 2.75."""
    return jnp.sum(jnp.logaddexp(-((x - 1.5) ** 2), -((x + 1.5) ** 2)))


@pytest.mark.parametrize(
    ("function", "mean", "variance"),
    [(lambda x: -0.5 * jnp.sum((x - 1) ** 2), 1.0, 1.0), (two_modes, 0.0, 2.75)],
    ids=["gaussian", "two modes"],
)
def test_a_wide_surrogate_leads_to_the_mean_and_variance_of_the_target(function, mean, variance, key):

    @jax.jit
    def run(points):
        target = sk.LogDensity(function).bind(points[0])
        sampler = sk.gradient_free_svgd(lambda x: -0.5 * jnp.sum(x**2) / 9, sk.RBF(0.5), optax.sgd(0.2))

        def move(_, state):
            return sampler.step(jr.key(0), state, target)[0]

        return jax.lax.fori_loop(0, 5000, move, sampler.init(target, points)).points

    points = run(1 + 3 * jr.normal(key, (100, 1)))
    # A hundred particles and a kernel of finite width match moments to order 1/n and h, here one or two percent.
    np.testing.assert_allclose(jnp.mean(points), mean, atol=0.02)
    np.testing.assert_allclose(jnp.var(points), variance, rtol=0.02)
