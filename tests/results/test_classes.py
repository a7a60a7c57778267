"""Class probabilities: uncertainty by its parts, calibration against a count by hand, and the reliability diagram."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special, stats

import steinkern as sk

ROWS = jnp.linspace(-2.0, 2.0, 11)


def logit(parameters, row):
    return parameters * row


def logits(parameters, row):
    return jnp.stack([parameters * row, -row, jnp.ones_like(row)])


@pytest.fixture(scope="module")
def result():
    start = jr.normal(jr.key(0), (8,))
    return sk.fit(jr.key(0), lambda x: -(x**2), sk.ensemble(1e-6), start, num_steps=1)


def test_probabilities_are_those_of_the_logits(result):
    slopes, rows = np.asarray(result.particles), np.asarray(ROWS)
    two = result.predict(logit, ROWS).probabilities(sk.Bernoulli())
    expected = special.expit(slopes[:, None] * rows)
    np.testing.assert_allclose(two.values, np.stack([1 - expected, expected], axis=-1), rtol=1e-10)
    np.testing.assert_allclose(two.mean[:, 1], expected.mean(0), rtol=1e-10)
    three = result.predict(logits, ROWS).probabilities(sk.Categorical())
    outputs = np.stack([slopes[:, None] * rows, np.tile(-rows, (8, 1)), np.ones((8, 11))], axis=-1)
    np.testing.assert_allclose(three.values, special.softmax(outputs, axis=-1), rtol=1e-10)
    np.testing.assert_array_equal(three.most_probable, special.softmax(outputs, axis=-1).mean(0).argmax(-1))
    np.testing.assert_allclose(three.confidence, special.softmax(outputs, axis=-1).mean(0).max(-1), rtol=1e-10)


def test_entropy_is_the_noise_of_labels_and_what_the_parameters_hide(result):
    classes = result.predict(logits, ROWS).probabilities(sk.Categorical())
    values = np.asarray(classes.values)
    np.testing.assert_allclose(classes.entropy, stats.entropy(values.mean(0), axis=-1), rtol=1e-10)
    np.testing.assert_allclose(classes.expected_entropy, stats.entropy(values, axis=-1).mean(0), rtol=1e-10)
    hidden = [np.mean([stats.entropy(one, row) for one in rows]) for rows, row in zip(
        values.transpose(1, 0, 2), values.mean(0), strict=True)]  # fmt: skip
    np.testing.assert_allclose(classes.mutual_information, hidden, rtol=1e-8, atol=1e-12)
    assert classes.mutual_information[5] == pytest.approx(0, abs=1e-12)  # at 0 all particles agree


def test_several_independent_labels_have_two_classes_each(result):
    classes = result.predict(logits, ROWS).probabilities(sk.Bernoulli())
    assert classes.mean.shape == (11, 3, 2)
    assert classes.entropy.shape == (11, 3)


def test_certain_classes_have_no_entropy():
    classes = sk.results.ClassProbabilities(jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert float(classes.entropy[0]) == pytest.approx(np.log(2))
    assert float(classes.expected_entropy[0]) == 0
    assert float(classes.mutual_information[0]) == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [(sk.Gaussian(0.5), r"one of classes.*got Gaussian\("), ("classes", "a likelihood")],
    ids=["no classes", "no likelihood"],
)
def test_what_has_no_classes_is_refused(likelihood, message, result, as_installed):
    with pytest.raises(ValueError, match=f"`likelihood` must be {message}"):
        result.predict(logit, ROWS).probabilities(likelihood)
