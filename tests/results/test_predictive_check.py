"""Posterior predictive checks: p-values by their definition, models that do and do not fit, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import steinkern as sk
from steinkern.results import plot


def test_p_values_are_shares_of_data_sets_with_ties_by_half():
    replicated = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    check = sk.predictive_check(np.array([0.0, 2.0]), replicated, ["max", "min"])
    assert check.p_values == {"max": (2 + 0.5) / 4, "min": 0.5}
    assert check.observed == {"max": 2.0, "min": 0.0}
    np.testing.assert_array_equal(check.replicated["max"], [1, 2, 3, 4])
    assert check.extreme == ()


def test_statistics_are_of_whole_data_sets_of_any_shape(generator):
    observed, replicated = generator.normal(size=(3, 4)), generator.normal(size=(20, 3, 4))
    check = sk.predictive_check(observed, jnp.asarray(replicated))
    np.testing.assert_allclose(check.replicated["mean"], replicated.mean(axis=(1, 2)))
    np.testing.assert_allclose(check.replicated["sd"], replicated.std(axis=(1, 2)))
    assert list(check.observed) == ["mean", "sd", "min", "max"]


def test_a_model_that_made_the_data_passes_and_another_is_found_by_the_statistic_that_it_lacks(generator):
    replicated = generator.normal(size=(1000, 50))
    good = [sk.predictive_check(generator.normal(size=50), replicated) for _ in range(20)]
    assert sum(bool(check.extreme) for check in good) <= 10  # four statistics, each extreme with probability 0.05
    outlier = np.append(generator.normal(size=49), 9.0)
    check = sk.predictive_check(outlier, replicated)
    assert "max" in check.extreme
    assert check.p_values["max"] == 0
    assert "max is larger than replicated ones (p = 0)" in check.sentence()
    assert "NOT" in check.sentence()
    low = sk.predictive_check(-outlier, replicated, ["min"])
    assert "min is smaller than replicated ones (p = 1)" in low.sentence()


def test_your_own_statistics_are_called_with_one_data_set(generator):
    def lag(series):
        assert series.shape == (30,)
        return jnp.corrcoef(series[1:], series[:-1])[0, 1]

    replicated = generator.normal(size=(40, 30))
    check = sk.predictive_check(np.arange(30), replicated, ["mean", lag])
    assert list(check.observed) == ["mean", "lag"]
    assert check.observed["lag"] == pytest.approx(1.0)
    assert check.extreme == ("mean", "lag")
    named = sk.predictive_check(np.arange(30), replicated, {"autocorrelation": lag, "largest": "max"})
    assert list(named.observed) == ["autocorrelation", "largest"]


def test_counts_and_booleans_are_numbers():
    check = sk.predictive_check(np.array([True, False, True]), np.zeros((5, 3), int), ["mean"])
    assert check.observed["mean"] == pytest.approx(2 / 3)


def test_the_summary_has_a_line_for_each_statistic_and_the_finding(generator):
    check = sk.predictive_check(generator.normal(size=9), generator.normal(size=(50, 9)))
    lines = check.summary().splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["statistic", "mean", "sd", "min", "max"]
    assert lines[-1] == check.sentence()


def test_the_figure_has_a_panel_for_each_statistic_and_marks_extreme_ones(generator, tmp_path):
    check = sk.predictive_check(np.append(np.zeros(8), 99.0), generator.normal(size=(200, 9)), ["mean", "max"])
    figure = check.plot()
    assert [axes.get_title() for axes in figure.axes] == ["mean, p = 0.00", "max, p = 0.00"]
    assert plot.save(figure, tmp_path / "check.png").stat().st_size > 2000
    constant = sk.predictive_check(np.zeros(3), np.zeros((5, 3)), ["mean"]).plot()
    assert constant.axes[0].lines[0].get_color() != figure.axes[0].lines[0].get_color()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((np.zeros(3), np.zeros((5, 4))), r"data sets of the shape of `observed`, \(3,\), .* got shape \(5, 4\)"),
        ((np.zeros(3), np.zeros(3)), r"got shape \(3,\)"),
        ((np.zeros(3), np.zeros((0, 3))), r"got shape \(0, 3\)"),
        ((np.array([np.nan, 1.0]), np.zeros((5, 2))), "`observed` must not hold NaN, got 1 of 2"),
        ((np.zeros(2), np.full((5, 2), np.nan)), "`replicated` must not hold NaN, got 10 of 10"),
        ((np.zeros(2), np.zeros((5, 2)), "mean"), r"must be a sequence or a dictionary, got 'mean'. Write \['mean'\]"),
        (
            (np.zeros(2), np.zeros((5, 2)), ["median"]),
            "knows mean, sd, min, max and functions of a data set, got 'median'",
        ),
        ((np.zeros(2), np.zeros((5, 2)), []), "`statistics` must hold at least one"),
        ((np.zeros(2), np.zeros((5, 2)), [np.sort]), "must give one number for a data set, got array"),
        ((np.zeros(2), np.zeros((5, 2)), [3]), "`statistics` must be names, or functions"),
        ((np.zeros(2), np.zeros((5, 2)), ["mean", "mean"]), "different names, got 'mean' twice"),
        ((np.zeros(2, complex), np.zeros((5, 2))), "`observed` must be real numbers"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value[:20],
)
def test_what_cannot_be_compared_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        sk.predictive_check(*arguments)
