"""The test of uniform ranks: its level, its band, and its definition on few ranks."""

import numpy as np
import pytest
from scipy import stats

from steinkern import plot
from steinkern.results.uniformity import departure, uniformity_test


def uniform_ranks(generator, sets, number, num_ranks):
    return generator.integers(0, num_ranks, size=(sets, number))


@pytest.mark.parametrize(("number", "num_ranks"), [(100, 20), (250, 101), (40, 1001)])
def test_uniform_ranks_fail_as_often_as_the_level_says(number, num_ranks):
    test = uniformity_test(number, num_ranks)
    p_values = np.array([test.p_value(row) for row in uniform_ranks(np.random.default_rng(1), 2000, number, num_ranks)])
    for level in (0.05, 0.3):
        found = np.mean(p_values < level)
        assert abs(found - level) < 4 * np.sqrt(level * (1 - level) / 2000) + 0.01, level  # ranks are discrete


def test_the_band_holds_the_ranks_whose_p_value_is_above_its_level():
    test = uniformity_test(100, 50)
    lower, upper = test.band(0.95)
    for row in uniform_ranks(np.random.default_rng(2), 300, 100, 50):
        counts = test.counts(row)
        inside = bool(np.all((counts >= lower) & (counts <= upper)))
        p_value = test.p_value(row)
        assert inside == (p_value > 0.05) or abs(p_value - 0.05) < 0.01  # equal values of γ at the band's edge


def test_tail_probabilities_are_those_of_the_binomial_distribution():
    test = uniformity_test(30, 12)
    k = np.arange(31)[:, None]
    z = test.levels[None, :]
    two_sided = 2 * np.minimum(stats.binom.cdf(k, 30, z), stats.binom.sf(k - 1, 30, z))
    np.testing.assert_allclose(test.tails, np.minimum(two_sided, 1), rtol=1e-9, atol=1e-14)
    ranks = np.random.default_rng(0).integers(0, 12, 30)
    np.testing.assert_array_equal(test.counts(ranks), [np.sum(ranks < edge) for edge in range(1, 12)])


@pytest.mark.parametrize("number", [20, 500])
def test_ranks_that_are_all_alike_are_never_uniform(number):
    test = uniformity_test(number, 100)
    for rank in (0, 50, 99):
        assert test.p_value(np.full(number, rank)) < 1e-4
    assert test.p_value(np.full(500, 0)) < 1e-9 if number == 500 else True  # beyond what is simulated


def test_departures_are_named_by_the_draws():
    even = (np.arange(400) * 100) // 400
    assert departure(even, 100) == ""
    assert departure(even // 2, 100) == "the draws are too large"
    assert departure(99 - even // 2, 100) == "the draws are too small"
    assert departure(np.where(even < 50, even // 2, 99 - (99 - even) // 2), 100) == "the draws are too close together"
    assert departure(25 + even // 2, 100) == "the draws are too far apart"


def test_the_figure_marks_the_ranks_that_leave_the_band(tmp_path):
    even = (np.arange(100) * 20) // 100
    figure = plot.rank_ecdf({"good": even, "bad": even // 2}, 20, title="ranks")
    good, bad = figure.axes
    assert good.lines[1].get_color() != bad.lines[1].get_color()
    assert plot.save(figure, tmp_path / "ranks.png").stat().st_size > 2000
    with pytest.raises(ValueError, match="`ranks` must hold at least one parameter"):
        plot.rank_ecdf({}, 20)
