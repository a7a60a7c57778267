"""Ready-made models against SciPy, likelihoods with unknown noise against quadrature, and the deep ensemble."""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import scipy.stats
from scipy.special import expit

import steinkern as sk
from studies import models
from studies.models import NetworkPrior, RegressionNetwork

pytestmark = pytest.mark.thorough

SIZES = (3, 4, 2)
NOISE = sk.GaussianNoise()


def network_of(key, sizes=SIZES, log_variance: float = -0.4) -> RegressionNetwork:
    """All numbers from N(0, 1), biases too."""
    shapes = jax.eval_shape(partial(RegressionNetwork.draw, sizes=sizes), key)
    leaves, structure = jax.tree.flatten(shapes)
    normal = [np.random.default_rng(i).standard_normal(leaf.shape) for i, leaf in enumerate(leaves)]
    filled = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in normal])
    return eqx.tree_at(lambda network: network.log_variance, filled, jnp.asarray(log_variance))


def layers_of(network: RegressionNetwork) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]


# ------------------------------------------------------------------------------------------------ noise of unknown size


@pytest.mark.parametrize("log_variance", [-3.0, 0.4])
def test_gaussian_noise_is_scipys(log_variance, key):
    mean, label = jr.normal(key, (2, 3))
    expected = np.sum(scipy.stats.norm.logpdf(label, mean, math.exp(log_variance / 2)))
    output = jnp.append(mean, log_variance)
    np.testing.assert_allclose(NOISE.log_prob(output, label), expected, rtol=1e-12)


@pytest.mark.parametrize("outputs", [1, 2])
def test_gaussian_noise_has_the_expected_negative_hessian_for_fisher_information(outputs, key):
    """The Hessian is quadratic in the label, so that Gauss-Hermite quadrature with three nodes is exact."""
    output = jr.normal(key, (outputs + 1,))
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    weights = weights / np.sum(weights)
    grid = np.stack(np.meshgrid(*[nodes] * outputs, indexing="ij"), axis=-1).reshape(-1, outputs)
    shares = np.prod(np.stack(np.meshgrid(*[weights] * outputs, indexing="ij"), axis=-1).reshape(-1, outputs), axis=1)
    labels = output[None, :-1] + jnp.exp(output[-1] / 2) * grid
    hessians = jax.jit(jax.vmap(jax.hessian(NOISE.log_prob), (None, 0)))(output, labels)
    expected = -np.einsum("n,nij->ij", shares, hessians)
    np.testing.assert_allclose(NOISE.fisher(output), expected, rtol=1e-10, atol=1e-12)
    closed = np.diag([*[math.exp(-output[-1])] * outputs, outputs / 2])
    np.testing.assert_allclose(NOISE.fisher(output), closed, rtol=1e-12)


# ------------------------------------------------------------------------------------------------- regression networks


def predicted(network: RegressionNetwork, x) -> np.ndarray:
    *hidden, last = layers_of(network)
    for weight, bias in hidden:
        x = np.maximum(weight @ x + bias, 0)
    return last[0] @ x + last[1]


@pytest.mark.parametrize("sizes", [(3, 2), (3, 4, 2), (3, 4, 5, 1)], ids=str)
def test_a_network_predicts_means_and_the_log_variance(sizes, key):
    network, x = network_of(key, sizes), np.asarray(jr.normal(key, (3,)))
    np.testing.assert_allclose(eqx.filter_jit(network)(x), [*predicted(network, x), -0.4], rtol=1e-12)


def test_networks_start_with_noise_of_their_own(key):
    draw = jax.vmap(lambda one: RegressionNetwork.draw(one, (1, 1), log_variance=0.7, spread=0.3).log_variance)
    noise = draw(jr.split(key, 4000))
    np.testing.assert_allclose(jnp.mean(noise), 0.7, atol=4 * 0.3 / np.sqrt(4000))  # four standard errors
    np.testing.assert_allclose(jnp.std(noise), 0.3, atol=4 * 0.3 / np.sqrt(8000))


@pytest.mark.parametrize("dtype", [None, jnp.float32], ids=["default", "float32"])
def test_first_weights_are_uniform_by_the_number_of_inputs(dtype, key):
    network = RegressionNetwork.draw(key, (30, 40, 50), log_variance=0.7, spread=0.0, dtype=dtype)
    assert [layer.weight.shape for layer in network.layers] == [(40, 30), (50, 40)]
    assert {leaf.dtype for leaf in jax.tree.leaves(network)} == {np.dtype(dtype or jnp.float64)}
    np.testing.assert_allclose(network.log_variance, 0.7, rtol=1e-7)  # as exact as float32
    for layer, inputs in zip(network.layers, (30, 40), strict=True):
        scaled = np.asarray(layer.weight, np.float64).reshape(-1) * math.sqrt(inputs)
        assert scipy.stats.kstest(scaled, scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
        assert np.all(np.abs(np.asarray(layer.bias)) <= 1 / math.sqrt(inputs))


def log_prior_by_scipy(network: RegressionNetwork, precision: float, shape: float, rate: float) -> float:
    weights = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(network.layers)])
    noise_precision = math.exp(-network.log_variance)
    normal = np.sum(scipy.stats.norm.logpdf(weights, 0, precision**-0.5))
    gamma = scipy.stats.gamma.logpdf(noise_precision, shape, scale=1 / rate)
    return normal + gamma + math.log(noise_precision)  # |d precision / d log variance| is the precision itself


@pytest.mark.parametrize("options", [{}, {"precision": 0.3, "shape": 2.5, "rate": 0.7}], ids=["default", "other"])
def test_the_prior_is_scipys_up_to_a_constant(options, key):
    stated = {"precision": 1.0, "shape": 1.0, "rate": 0.1, **options}
    networks = [jax.tree.map(lambda leaf, scale=scale: scale * leaf, network_of(key)) for scale in (1.0, -0.5, 2.0)]
    actual = [eqx.filter_jit(NetworkPrior(**options))(network) for network in networks]
    expected = [log_prior_by_scipy(network, **stated) for network in networks]
    np.testing.assert_allclose(np.diff(actual), np.diff(expected), rtol=1e-10)


@pytest.mark.parametrize("prior", [None, NetworkPrior(0.5, 2.0, 0.3)], ids=["default", "given"])
def test_the_posterior_of_a_network_adds_prior_and_likelihood(prior, key):
    network = network_of(key)
    x, y = np.asarray(jr.normal(key, (4, 3))), np.asarray(jr.normal(key, (4, 2)))
    target = models.network_posterior(8, prior).bind(network)
    residuals = y - np.stack([predicted(network, row) for row in x])
    likelihood = np.sum(scipy.stats.norm.logpdf(residuals, 0, math.exp(-0.2)))
    expected = (prior or NetworkPrior())(network) + 8 / 4 * likelihood
    point = target.space.unconstrain(network)
    np.testing.assert_allclose(eqx.filter_jit(target.log_density)(point, (x, y)), expected, rtol=1e-10)


def test_the_curvature_of_a_network_has_a_block_a_layer_and_the_noise(key):
    network = network_of(key)
    target = models.network_posterior(8).bind(network)
    data = jnp.ones((4, 3)), jnp.ones((4, 2))
    curvature = eqx.filter_jit(models.network_curvature())(target, target.space.unconstrain(network), data)
    assert [part.size for part in curvature.parts] == [4 * 3 + 4, 2 * 4 + 2, 1]
    # E[−∂² log p] = N m/2 for m outputs; the prior −a s − b e^(−s) has the curvature b e^(−s), here 0.1 e^0.4.
    np.testing.assert_allclose(curvature.parts[-1].entries, [8 * 2 / 2 + 0.1 * math.exp(0.4)], rtol=1e-12)


# ------------------------------------------------------------------------------------------------- logistic regression


def test_the_logistic_posterior_is_scipys_up_to_a_constant(key):
    x, y = np.asarray(jr.normal(key, (6, 3))), np.array([0, 1, 1, 0, 1, 0])
    target = models.logistic_posterior(12).bind(jnp.zeros(3))
    points = np.asarray(jr.normal(key, (3, 3)))
    actual = jax.jit(lambda points: target.log_densities(points, (x, y)))(points)
    expected = [
        np.sum(scipy.stats.norm.logpdf(point)) + 12 / 6 * np.sum(scipy.stats.bernoulli.logpmf(y, expit(x @ point)))
        for point in points
    ]
    np.testing.assert_allclose(np.diff(actual), np.diff(expected), rtol=1e-10)


# ------------------------------------------------------------------------------------------------------------ ensembles

PRECISION, MODE = jnp.array([[2.0, 0.4], [0.4, 1.0]]), jnp.array([1.0, -0.5])


def run(optimizer, points, num_steps: int):
    target, sampler = (
        sk.LogDensity(lambda x: -0.5 * jnp.vdot(x - MODE, PRECISION @ (x - MODE))).bind(MODE),
        sk.ensemble(optimizer),
    )

    @jax.jit
    def walk(points):
        def step(state, _):
            return sampler.step(jr.key(0), state, target)

        return jax.lax.scan(step, sampler.init(target, points), None, num_steps)

    return walk(points)


def test_an_ensemble_is_gradient_ascent_and_tells_the_gradient(key):
    points = np.asarray(jr.normal(key, (4, 2)))
    state, info = run(optax.sgd(0.1), jnp.asarray(points), 3)
    for t in range(3):
        gradient = -(points - np.asarray(MODE)) @ np.asarray(PRECISION)
        np.testing.assert_allclose(info.velocity_norm[t], np.sqrt(np.mean(gradient**2)), rtol=1e-12)
        points = points + 0.1 * gradient
    np.testing.assert_allclose(state.points, points, rtol=1e-12)
