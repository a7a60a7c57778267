"""Class probabilities: uncertainty by its parts, calibration against a count by hand, and the reliability diagram."""

import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy import special, stats

import steinkern as sk
from steinkern import plot

ROWS = jnp.linspace(-2.0, 2.0, 11)


@pytest.fixture
def as_users_call_it():
    """Without the checks of types at every call, which refuse a wrong type before the library does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


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
    assert classes.calibration(np.zeros((11, 3), int)).count.sum() == 33


def test_certain_classes_have_no_entropy():
    classes = sk.ClassProbabilities(jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert float(classes.entropy[0]) == pytest.approx(np.log(2))
    assert float(classes.expected_entropy[0]) == 0
    assert float(classes.mutual_information[0]) == pytest.approx(np.log(2))


def test_the_calibration_error_is_that_of_a_count_by_hand():
    # Three predictions with 0.9, two of them right; one with 0.6, right: the gaps are |2/3 − 0.9| and |1 − 0.6|.
    mean = jnp.array([[0.1, 0.9], [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
    calibration = sk.ClassProbabilities(mean[None]).calibration([1, 1, 1, 0], num_bins=5)
    np.testing.assert_array_equal(calibration.count, [0, 0, 0, 1, 3])
    np.testing.assert_allclose(calibration.accuracy[3:], [1, 2 / 3])
    np.testing.assert_allclose(calibration.confidence[3:], [0.6, 0.9])
    assert calibration.error == pytest.approx((3 * (0.9 - 2 / 3) + 0.4) / 4)
    assert calibration.largest_error == pytest.approx(0.4)


def test_labels_drawn_from_the_probabilities_are_calibrated_and_others_are_not():
    generator = np.random.default_rng(0)
    probability = generator.uniform(size=20_000)
    labels = (generator.uniform(size=20_000) < probability).astype(int)
    right = sk.ClassProbabilities(jnp.stack([1 - probability, probability], axis=-1)[None])
    sure = special.expit(3 * special.logit(probability))
    bold = sk.ClassProbabilities(jnp.stack([1 - sure, sure], axis=-1)[None])
    # The noise of the accuracies is at most 0.4 √(15 / 20,000) = 0.011.
    assert right.calibration(labels).error < 0.011
    assert bold.calibration(labels).error > 0.1


def test_what_has_no_classes_or_other_labels_is_refused(result):
    prediction = result.predict(logit, ROWS)
    with pytest.raises(ValueError, match=r"`likelihood` must be one of classes.*got Gaussian\("):
        prediction.probabilities(sk.Gaussian(0.5))
    with pytest.raises(ValueError, match="`likelihood` must be a likelihood"):
        prediction.probabilities("classes")
    classes = prediction.probabilities(sk.Bernoulli())
    with pytest.raises(ValueError, match=r"one class for each row, shape \(11,\), got \(3,\)"):
        classes.calibration([0, 1, 0])
    with pytest.raises(ValueError, match=r"classes 0 … 1, got 2\. Count them from 0"):
        classes.calibration([2] * 11)
    with pytest.raises(ValueError, match="`num_bins`"):
        classes.calibration([0] * 11, num_bins=0)


def test_the_diagram_shows_accuracy_against_confidence(result, tmp_path, as_users_call_it):
    classes = result.predict(logit, ROWS).probabilities(sk.Bernoulli())
    calibration = classes.calibration([0, 1] * 5 + [0])
    both = {"one": calibration, "other": calibration}
    (axes,) = plot.reliability(both, title="Slopes", colours={"other": "#8C8C8C"}).axes
    shown = [points for points in axes.collections if points.get_label().startswith(("one", "other"))]
    assert [to_hex(points.get_facecolor()[0]).upper() == "#8C8C8C" for points in shown] == [False, True]
    filled = calibration.count > 0
    for points in shown:
        expected = np.stack([calibration.confidence[filled], calibration.accuracy[filled]], axis=-1)
        np.testing.assert_allclose(points.get_offsets(), expected)
        assert points.get_label().endswith(f"calibration error {calibration.error:.3f}")
    assert len(shown) == 2
    assert plot.save(plot.reliability(calibration), tmp_path / "one.png").stat().st_size > 2_000
    for wrong in ({}, "calibration", {"a": 3}):
        with pytest.raises(ValueError, match=r"`calibrations` must be what `ClassProbabilities\.calibration"):
            plot.reliability(wrong)
    with pytest.raises(ValueError, match="`calibrations` must be at most 7"):
        plot.reliability({str(i): calibration for i in range(8)})
