"""First particles: where they lie, how they spread, and that they lie inside their support."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

MANY = 4000
FIVE_ERRORS = 5 / np.sqrt(MANY)  # of a mean, in standard deviations; √2 times that of a variance

PRECISION = np.array([[3.0, 1.0], [1.0, 2.0]])
MEAN = np.array([0.5, -1.0])


def gaussian(parameters):
    offset = jnp.stack([parameters["a"], parameters["b"][0]]) - MEAN
    return -0.5 * offset @ PRECISION @ offset


def gamma(x, shape):
    return (shape - 1) * jnp.log(x) - x


def assert_moments(points, mean, covariance):
    """Mean and covariance of many draws, to Monte Carlo error in the whitened coordinates."""
    whitened = (np.asarray(points) - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    np.testing.assert_allclose(whitened.mean(0), np.zeros(len(mean)), atol=FIVE_ERRORS)
    second = np.cov(whitened, rowvar=False).reshape(len(mean), -1)
    np.testing.assert_allclose(second, np.eye(len(mean)), atol=np.sqrt(2) * FIVE_ERRORS)


def test_prior_draws_are_the_draws_of_the_split_keys(key):
    def draw(key):
        return {"a": jr.normal(key, (2,)), "b": jr.uniform(key)}

    particles = sk.initial.prior(key, draw, 3)
    expected = [draw(one) for one in jr.split(key, 3)]
    for i in range(3):
        for name, value in expected[i].items():
            np.testing.assert_allclose(particles[name][i], value, rtol=1e-14)


def test_gaussian_draws_have_the_center_and_the_scale_they_were_given(key):
    center = {"a": jnp.asarray(1.0), "b": jnp.array([-2.0])}
    particles = sk.initial.gaussian(key, center, MANY, 0.3)
    assert {name: leaf.shape for name, leaf in particles.items()} == {"a": (MANY,), "b": (MANY, 1)}
    points = np.column_stack([particles["a"], particles["b"]])
    assert_moments(points, np.array([1.0, -2.0]), 0.09 * np.eye(2))


def test_gaussian_draws_lie_inside_their_support(key):
    support = {"scale": sk.positive, "parts": sk.simplex}
    center = {"scale": jnp.asarray(2.0), "parts": jnp.array([0.2, 0.3, 0.5])}
    particles = sk.initial.gaussian(key, center, MANY, 2.0, support=support)
    assert np.all(particles["scale"] > 0)
    assert_moments(np.log(particles["scale"])[:, None], np.log([2.0]), np.array([[4.0]]))
    np.testing.assert_allclose(np.sum(particles["parts"], axis=1), np.ones(MANY), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gaussian_draws_keep_the_precision_of_the_center(dtype, key):
    assert sk.initial.gaussian(key, np.zeros(2, dtype), 3).dtype == dtype


def test_draws_around_the_mode_of_a_gaussian_are_draws_from_it(key):
    start = {"a": jnp.asarray(5.0), "b": jnp.array([5.0])}
    particles = sk.initial.around_mode(key, gaussian, start, MANY)
    points = np.column_stack([particles["a"], particles["b"]])
    assert_moments(points, MEAN, np.linalg.inv(PRECISION))
    narrow = sk.initial.around_mode(key, gaussian, start, MANY, scale=0.1)
    np.testing.assert_allclose(narrow["a"] - MEAN[0], 0.1 * (particles["a"] - MEAN[0]), atol=1e-6)


@pytest.mark.parametrize("start", [0.1, 20.0])
def test_mode_of_a_positive_parameter_is_that_of_its_logarithm(start, key):
    # In u = log x a Gamma(3, 1) has density exp(3u − e^u): mode log 3, curvature 3. The shape comes as data.
    target = sk.LogDensity(gamma, support=sk.positive)
    particles = sk.initial.around_mode(key, target, jnp.asarray(start), MANY, jnp.asarray(3.0))
    assert_moments(np.log(particles)[:, None], np.log([3.0]), np.array([[1 / 3]]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda key: sk.initial.prior(key, lambda key: jr.normal(key), 0), ["`num_particles`", "at least 1", "0"]),
        (lambda key: sk.initial.gaussian(key, jnp.zeros(2), 0), ["`num_particles`", "at least 1", "0"]),
        (lambda key: sk.initial.gaussian(key, jnp.zeros(2), 3, scale=0.0), ["`scale`", "positive", "0.0"]),
        (
            lambda key: sk.initial.gaussian(key, -jnp.ones(2), 3, support=sk.positive),
            ["`center`", "support", "GreaterThan"],
        ),
        (lambda key: sk.initial.gaussian(key, jnp.array([0.0, jnp.inf]), 3), ["`center`", "finite"]),
        (lambda key: sk.initial.around_mode(key, gaussian, jnp.zeros(2), 0), ["`num_particles`", "at least 1", "0"]),
        (
            lambda key: sk.initial.around_mode(
                key, sk.LogDensity(gamma, support=sk.positive), -jnp.ones(()), 3, jnp.asarray(3.0)
            ),
            ["`start`", "support"],
        ),
        (lambda key: sk.initial.around_mode(key, lambda x: jnp.sum(jnp.log(x)), -jnp.ones(2), 3), ["`start`", "NaN"]),
        (
            lambda key: sk.initial.around_mode(key, sk.Posterior(jnp.sum, gamma, 3), jnp.ones(()), 3),
            ["`data`", "missing"],
        ),
        (
            lambda key: sk.initial.around_mode(key, sk.Posterior(jnp.sum, gamma, 3), jnp.ones(()), 3, jnp.ones(4)),
            ["`data`", "4 rows", "`num_data` is 3"],
        ),
        (
            lambda key: sk.initial.around_mode(key, lambda x: -(x**2), jnp.ones(()), 3, max_steps=0),
            ["`max_steps`", "at least 1", "0"],
        ),
    ],
    ids=[
        "no draws",
        "no particles",
        "scale",
        "center",
        "infinite center",
        "no number",
        "start",
        "nan",
        "no data",
        "other data",
        "no steps",
    ],
)
def test_first_particles_refuse(call, words, key):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are checked here
        call(key)
    for word in words:
        assert word in str(raised.value)
