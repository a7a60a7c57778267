"""Predictions: the function at every particle and row, its mean and quantiles, and the log of a mean density."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import steinkern as sk
from steinkern.results import prediction as module

X = jnp.linspace(-1.0, 1.0, 7)
LABELS = jnp.sin(3 * X)


def line(parameters, row):
    return parameters["slope"] * row[0] + parameters["level"]


@pytest.fixture(scope="module")
def result():
    start = {"slope": jr.normal(jr.key(0), (9,)), "level": jr.normal(jr.key(1), (9,))}
    return sk.fit(jr.key(0), lambda p: -(p["slope"] ** 2) - p["level"] ** 2, sk.svgd(), start, num_steps=2)


@pytest.fixture(scope="module")
def expected(result):
    slope, level = (np.asarray(result.particles[name])[:, None] for name in ("slope", "level"))
    return slope * np.asarray(X)[None] + level


@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 100])
def test_values_mean_and_interval_are_those_of_every_particle_and_row(result, expected, batch_size):
    prediction = result.predict(line, (X,), level=0.8, batch_size=batch_size)
    np.testing.assert_allclose(prediction.values, expected, rtol=1e-12)
    np.testing.assert_allclose(prediction.mean, expected.mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.interval, np.quantile(expected, [0.1, 0.9], axis=0), rtol=1e-12)


def test_spread_quantiles_and_intervals_of_any_level_are_those_over_the_particles(result, expected):
    prediction = result.predict(line, (X,), level=0.8)
    np.testing.assert_allclose(prediction.sd, expected.std(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.quantiles(0.5), np.median(expected, 0), rtol=1e-12)
    wanted = [0, 0.25, 1]
    np.testing.assert_allclose(prediction.quantiles(wanted), np.quantile(expected, wanted, axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        prediction.credible_interval(0.5), np.quantile(expected, [0.25, 0.75], axis=0), rtol=1e-12
    )
    np.testing.assert_array_equal(prediction.credible_interval(0.8), prediction.interval)


@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 100])
def test_moments_alone_are_those_of_the_values(result, expected, batch_size):
    prediction = result.predict(line, (X,), batch_size=batch_size, keep_values=False)
    assert prediction.values is None
    np.testing.assert_allclose(prediction.mean, expected.mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.sd, expected.std(0), rtol=1e-12)
    for ask in (lambda: prediction.interval, lambda: prediction.quantiles(0.5)):
        with pytest.raises(ValueError, match="`quantiles` needs the value at every particle and row"):
            ask()
    with pytest.raises(ValueError, match="`log_density` needs the value"):
        prediction.log_density(sk.Gaussian(), LABELS)


def test_moments_alone_never_hold_particles_times_rows():
    particles, rows = {"slope": jnp.ones(50), "level": jnp.ones(50)}, (jnp.ones(20_000),)
    whole = 50 * 20_000 * 8  # bytes
    kept = module._over_rows.lower(line, particles, None, rows, 20_000, True).compile().memory_analysis()
    alone = module._over_rows.lower(line, particles, None, rows, 1024, False).compile().memory_analysis()
    assert kept.output_size_in_bytes >= whole
    assert alone.output_size_in_bytes + alone.temp_size_in_bytes < whole / 2


@pytest.mark.parametrize("wrong", ["half", 1.5, [0.1, -0.1], [[0.5]], None])
def test_probabilities_that_are_none_are_refused(result, wrong):
    with pytest.raises(ValueError, match="`probabilities` must be"):
        result.predict(line, (X,)).quantiles(wrong)


def test_log_density_is_the_log_of_the_mean_density(result, expected):
    scores = result.predict(line, (X,)).log_density(sk.Gaussian(0.25), LABELS)
    each = stats.norm(expected, 0.5).logpdf(np.asarray(LABELS)[None])
    np.testing.assert_allclose(scores, logsumexp(each, axis=0) - np.log(9), rtol=1e-10)


def test_outputs_may_have_any_shape_and_labels_be_classes(result):
    def logits(parameters, row):
        return jnp.stack([line(parameters, row), -parameters["level"], row[0]])

    prediction = result.predict(logits, (X,))
    assert prediction.mean.shape == (7, 3)
    labels = jnp.array([0, 1, 2, 0, 1, 2, 0])
    probabilities = jax.nn.softmax(prediction.values).mean(0)
    picked = np.asarray(probabilities)[np.arange(7), np.asarray(labels)]
    np.testing.assert_allclose(prediction.log_density(sk.Categorical(), labels), np.log(picked), rtol=1e-10)


def test_shared_parameters_are_in_their_place():
    particles, shared = sk.split({"slope": jnp.array(2.0), "level": jnp.arange(3.0)}, "level")
    target = sk.LogDensity(lambda p: -(p["level"] ** 2) - p["slope"] ** 2, shared=shared)
    sampler = sk.half_bayesian(sk.svgd(), 0.1)
    half = sk.fit(jr.key(0), target, sampler, particles, num_steps=3)
    assert not np.allclose(half.shared["slope"], 2.0)
    expected = np.asarray(half.shared["slope"]) * np.asarray(X)[None] + np.asarray(half.particles["level"])[:, None]
    np.testing.assert_allclose(half.predict(line, (X,)).values, expected, rtol=1e-12)


def test_the_same_prediction_compiles_once(result):
    calls = []

    def counted(parameters, row):
        calls.append(row)
        return line(parameters, row)

    first = result.predict(counted, (X,))
    second = result.predict(counted, (X + 1,))
    assert len(calls) == 1
    assert not np.allclose(first.values, second.values)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("line", (X,)), {}, "`function` must be a function of the parameters"),
        ((line, (X, X[:3])), {}, "`data` must be arrays with one common leading axis"),
        ((line, (X,)), {"level": 1.5}, "`level` must lie between 0 and 1, got 1.5"),
        ((line, (X,)), {"batch_size": 0}, "`batch_size` must be a whole number of at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(result, arguments, options, message, as_installed):
    with pytest.raises(ValueError, match=message):
        result.predict(*arguments, **options)


@pytest.mark.parametrize(
    ("likelihood", "labels", "message"),
    [
        (sk.Gaussian(), LABELS[:3], "one label for each of the 7 rows, got 3"),
        ("normal", LABELS, "`likelihood` must be a likelihood"),
    ],
    ids=["labels", "likelihood"],
)
def test_labels_and_likelihoods_that_do_not_fit_are_refused(likelihood, labels, message, result, as_installed):
    with pytest.raises(ValueError, match=message):
        result.predict(line, (X,)).log_density(likelihood, labels)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(lambda row: {"a": row[0]}, "dict"), (lambda row: "text", "str"), (lambda row: None, "NoneType")],
)
def test_a_function_that_gives_no_array_is_refused(result, value, kind):
    with pytest.raises(ValueError, match=f"`function` must give a number or an array .* of type {kind}. Stack"):
        result.predict(lambda parameters, row: value(row), jnp.ones((4, 2)))


def test_rows_of_another_width_are_refused_with_both_shapes(result):
    def regression(parameters, row):
        return jnp.dot(row, jnp.stack([parameters["slope"], parameters["level"]]))

    assert result.predict(regression, jnp.ones((4, 2))).mean.shape == (4,)
    message = (
        r"`function` must take the parameters, shape level: \(\), slope: \(\), and one row of `data`, shape \(3,\); "
    )
    with pytest.raises(ValueError, match=message + r"it raised TypeError: .*\. Was it written for other"):
        result.predict(regression, jnp.ones((4, 3)))
