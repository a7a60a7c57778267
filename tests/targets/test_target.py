"""Log densities against SciPy and the change of variables, minibatch scaling, and what is said of wrong targets."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats
from jax.scipy.stats import norm

import steinkern as sk
from steinkern.targets.checks import batch_length
from steinkern.targets.target import BoundTarget, as_target

NUM_DATA = 6


class Example(NamedTuple):
    x: jax.Array
    y: jax.Array


def log_prior(parameters):
    return jnp.sum(norm.logpdf(parameters["weights"])) - parameters["scale"]


def log_likelihood(parameters, example):
    return norm.logpdf(example.y, example.x @ parameters["weights"], parameters["scale"])


POSTERIOR = sk.Posterior(log_prior, log_likelihood, NUM_DATA, support={"scale": sk.positive})
REGRESSION = POSTERIOR.bind({"weights": jnp.zeros(2), "scale": jnp.ones(())})


def draw(key) -> tuple[Example, jax.Array]:
    """Data, and an unconstrained vector: the log of the scale, then the weights."""
    x_key, y_key, vector_key = jr.split(key, 3)
    return Example(jr.normal(x_key, (NUM_DATA, 2)), jr.normal(y_key, (NUM_DATA,))), jr.normal(vector_key, (3,))


@eqx.filter_jit
def log_density(target, vector, batch=None):
    return target.log_density(vector, batch)


def by_scipy(vector, data: Example, scaling: float) -> float:
    log_scale, *weights = np.asarray(vector)
    prior = np.sum(scipy.stats.norm.logpdf(weights)) + scipy.stats.expon.logpdf(np.exp(log_scale))
    likelihood = scipy.stats.norm.logpdf(data.y, np.asarray(data.x) @ weights, np.exp(log_scale))
    return prior + log_scale + scaling * np.sum(likelihood)  # the log of the scale is also its log-Jacobian


@pytest.mark.parametrize("rows", [NUM_DATA, 2, 1])
def test_posterior_is_prior_and_jacobian_once_and_the_batch_scaled_to_all_data(rows, key):
    data, vector = draw(key)
    batch = jax.tree.map(lambda leaf: leaf[:rows], data)
    np.testing.assert_allclose(
        log_density(REGRESSION, vector, batch), by_scipy(vector, batch, NUM_DATA / rows), rtol=1e-12
    )


def test_methods_of_a_target_are_the_gradient_and_the_parts_of_its_log_density(key):
    data, vector = draw(key)
    points = jnp.stack([vector, -vector])

    @jax.jit
    def parts(points):
        density = jax.vmap(jax.value_and_grad(lambda x: REGRESSION.log_density(x, data)))(points)
        whole = REGRESSION.log_densities(points, data), REGRESSION.scores(points, data)
        examples = REGRESSION.log_examples(points[0], data)
        return density, whole, examples, REGRESSION.log_base(points[0])

    density, whole, examples, base = parts(points)
    for actual, expected in zip(whole, density, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert examples.shape == (NUM_DATA,)
    np.testing.assert_allclose(base + np.sum(examples), density[0][0], rtol=1e-12)


def test_gamma_in_unconstrained_coordinates_includes_the_jacobian():
    target = sk.LogDensity(lambda x: 2 * jnp.log(x) - x, support=sk.positive).bind(jnp.ones(()))
    for u in (-2.0, 0.0, 1.3):
        expected = scipy.stats.gamma(3).logpdf(math.exp(u)) + scipy.special.gammaln(3) + u
        np.testing.assert_allclose(log_density(target, jnp.array([u])), expected, rtol=1e-12)


@pytest.mark.parametrize("data", [None, jnp.array(2.0)], ids=["without data", "with data"])
def test_log_density_takes_its_data_as_one_example(data):
    function = (lambda x: -jnp.sum(x**2)) if data is None else (lambda x, shift: -jnp.sum((x - shift) ** 2))
    target = sk.LogDensity(function).bind(jnp.zeros(2))
    expected = -np.sum((np.ones(2) - (0 if data is None else data)) ** 2)
    assert log_density(target, jnp.ones(2), data) == expected


@pytest.mark.parametrize("constant", [0, 0.0, np.float64(0)])
def test_a_flat_prior_may_be_a_plain_number(constant):
    target = sk.Posterior(lambda x: constant, lambda x, y: -jnp.sum((x - y) ** 2), 2).bind(jnp.zeros(1, jnp.float32))
    value = log_density(target, jnp.ones(1, jnp.float32), jnp.zeros((2, 1), jnp.float32))
    assert value == -2
    assert value.dtype == jnp.float32


@pytest.mark.parametrize(
    ("result", "message"),
    [
        pytest.param(lambda x: -(x**2), r"must return a scalar, got an array of shape \(2,\). Sum it", id="vector"),
        pytest.param(lambda x: jnp.sum(x)[None], r"must return a scalar.*\(1,\)", id="one entry"),
        pytest.param(lambda x: jnp.sum(x).astype(int), "floating-point number, got dtype int64", id="integer"),
        pytest.param(lambda x: jnp.sum(x) > 0, "floating-point number, got dtype bool", id="boolean"),
        pytest.param(lambda x: jnp.sum(x).astype(complex), "floating-point number, got dtype complex", id="complex"),
        pytest.param(lambda x: jnp.sum(x).astype(jnp.float32), "float32 for parameters in float64", id="precision"),
        pytest.param(lambda x: None, "must return", id="nothing"),
    ],
)
@pytest.mark.parametrize("name", ["log density", "log_prior", "log_likelihood"])
def test_functions_that_return_no_number_in_the_precision_of_the_particles_are_refused(name, result, message):
    def fine(x, *example):
        return jnp.sum(x)

    target = {
        "log density": sk.LogDensity(lambda x, data: result(x)),
        "log_prior": sk.Posterior(result, fine, 3),
        "log_likelihood": sk.Posterior(fine, lambda x, example: result(x), 3),
    }[name].bind(jnp.zeros(2))
    with pytest.raises(ValueError, match=f"`{name}` .*{message}"):
        jax.eval_shape(target.log_density, jnp.zeros(2), jnp.zeros(3))


def test_data_that_fit_are_accepted(key):
    data, _ = draw(key)
    REGRESSION.check_data(data, 4)
    assert batch_length(data) == NUM_DATA


def test_a_plain_function_is_a_log_density_and_a_target_is_itself():
    assert as_target(log_prior).function is log_prior
    assert as_target(POSTERIOR) is POSTERIOR


CHANGES = {
    "data": lambda target, data, number: (target, data._replace(y=data.y + number)),
    "num_data": lambda target, data, number: (
        BoundTarget(sk.Posterior(log_prior, target.target.log_likelihood, 10 * number), target.space), data,
    ),
    "power": lambda target, data, number: (target.tempered(number), data),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_other_numbers_do_not_compile_again(name, key):
    traces = []

    def counted(parameters, example):
        traces.append(example)
        return log_likelihood(parameters, example)

    data, vector = draw(key)
    plain = BoundTarget(sk.Posterior(log_prior, counted, NUM_DATA), REGRESSION.space)
    values = []
    for number in (0.5, 0.6):
        target, batch = CHANGES[name](plain, data, number)
        values.append(log_density(target, vector, batch))
    assert values[0] != values[1]
    assert len(traces) == 1
