"""The test behind a verdict: quiet at exact draws, loud where particles are beside, too wide or too narrow."""

import numpy as np
import pytest

from steinkern.inference.end_check import data_passes
from steinkern.inference.stein_test import RowErrors, ScoreSum, grows_outward, judge


def gaussian(generator, n: int, d: int, correlation: float = 0.0, scales=1.0, shift: float = 0.0):
    """Draws of a Gaussian with one correlation, moved and stretched along its own axes, and their scores."""
    covariance = (1 - correlation) * np.eye(d) + correlation
    root = np.linalg.cholesky(covariance)
    points = (generator.normal(size=(n, d)) * scales + shift * np.eye(d)[0]) @ root.T
    return points, -points @ np.linalg.inv(covariance)


def student(generator, n: int, d: int):
    points = generator.standard_t(3, size=(n, d))
    return points, -4 * points / (3 + points**2)


def log_exponential(generator, n: int, d: int):
    points = np.log(generator.exponential(size=(n, d)))
    return points, 1 - np.exp(points)


def two_modes(generator, n: int, d: int):
    points = generator.normal(size=(n, d))
    points[:, 0] += np.where(generator.random(n) < 0.5, -3, 3)
    scores = -points.copy()
    scores[:, 0] += 3 * np.tanh(3 * points[:, 0])
    return points, scores


def banana(generator, n: int, d: int):
    first = 2 * generator.normal(size=n)
    noise = 0.3 * generator.normal(size=n)
    pull = noise / 0.09
    return np.column_stack([first, first**2 / 4 + noise]), np.column_stack([pull * first / 2 - first / 4, -pull])


DRAWS = {
    "gaussian": gaussian,
    "correlated": lambda generator, n, d: gaussian(generator, n, d, 0.95),
    "student": student,
    "log exponential": log_exponential,
    "two modes": two_modes,
    "banana": banana,
}


@pytest.mark.parametrize("name", DRAWS)
def test_exact_draws_pass(name):
    generator = np.random.default_rng(0)
    sizes = (
        [(5, 2), (20, 2), (100, 2)] if name == "banana" else [(5, 2), (20, 2), (100, 2), (20, 10), (60, 10), (10, 60)]
    )
    failed = [size for size in sizes for _ in range(20) if not judge(*DRAWS[name](generator, *size)).passed]
    # The level is 0.001 a set, and 120 sets are looked at; a density that is far from a Gaussian may double it.
    assert len(failed) <= 2, failed


@pytest.mark.parametrize(
    ("case", "what"),
    [
        ({"n": 100, "d": 3, "shift": 1.0}, "shifted"),
        ({"n": 30, "d": 1, "shift": 2.0}, "shifted"),
        ({"n": 10, "d": 60, "shift": 20.0}, "shifted"),
        ({"n": 100, "d": 3, "shift": 2.0, "correlation": 0.95}, "shifted"),
        ({"n": 200, "d": 3, "shift": 20.0, "scales": [1.0, 1.4, 0.2]}, "shifted"),
        ({"n": 50, "d": 3, "scales": 2.5}, "wide"),
        ({"n": 50, "d": 3, "scales": 0.4}, "narrow"),
        ({"n": 100, "d": 2, "scales": [3.0, 0.3]}, "wide"),
        ({"n": 100, "d": 2, "scales": [3.0, 0.3]}, "narrow"),
        ({"n": 100, "d": 3, "scales": [3.0, 0.2, 1.0], "correlation": 0.95}, "wide"),
        ({"n": 100, "d": 3, "scales": [3.0, 0.2, 1.0], "correlation": 0.95}, "narrow"),
        ({"n": 10, "d": 60, "scales": 0.2}, "narrow"),
    ],
    ids=str,
)
def test_particles_that_are_no_draws_fail_for_what_is_wrong(case, what):
    for seed in range(5):
        verdict = judge(*gaussian(np.random.default_rng(seed), **case))
        assert verdict.passed is False
        assert getattr(verdict, what), verdict.sentence()


def test_a_stein_ratio_near_one_hides_nothing():
    generator = np.random.default_rng(0)
    verdict = judge(*gaussian(generator, 200, 3, shift=20.0, scales=[1.0, 1.4, 0.2]))
    assert verdict.stein_ratio == pytest.approx(1, abs=0.25)
    assert verdict.shifted
    assert verdict.narrow
    # A round cloud on a long Gaussian: every spread is near 1 too, and only the axes across tell.
    precision = np.linalg.inv(np.array([[1.0, 0.95], [0.95, 1.0]]))
    points = np.sqrt(1 - 0.95**2) * generator.normal(size=(200, 2))
    verdict = judge(points, -points @ precision, ["a", "b"])
    assert not (verdict.shift.failed | verdict.spread.failed | verdict.core_spread.failed).any()
    assert verdict.narrow
    assert verdict.worst_spread(low=True)[1] == "along a combination of a, b" or "b, a" in verdict.worst_spread(True)[1]


def test_a_few_stragglers_do_not_hide_that_the_others_are_wrong():
    generator = np.random.default_rng(0)
    points, _ = gaussian(generator, 100, 2, shift=1.5)
    points[:3] = 1e4 * generator.normal(size=(3, 2))
    verdict = judge(points, -points)
    assert verdict.core_shift.failed[0]


def test_units_change_nothing_and_linear_coordinates_neither_ratio_nor_axes():
    generator = np.random.default_rng(0)
    points, scores = gaussian(generator, 60, 3, 0.5, [1.0, 2.0, 0.3], 1.0)
    plain = judge(points, scores)
    units = np.array([1e-8, 1.0, 1e6])
    scaled = judge(points * units + 5 * units, scores / units)
    for name in ("shift", "spread", "core_shift", "core_spread", "axis_spread"):
        np.testing.assert_allclose(getattr(scaled, name).value, getattr(plain, name).value, rtol=1e-6, atol=1e-9)
    mixing = generator.normal(size=(3, 3))
    mixed = judge(points @ mixing.T, scores @ np.linalg.inv(mixing))
    assert mixed.stein_ratio == pytest.approx(plain.stein_ratio, rel=1e-9)
    np.testing.assert_allclose(mixed.axis_spread.value, plain.axis_spread.value, rtol=1e-6)
    np.testing.assert_allclose(np.abs(mixed.axis_shift.value), np.abs(plain.axis_shift.value), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1.0, 1e3, 1e150])
def test_a_density_turned_upside_down_grows_outward_at_any_scale(scale):
    points = scale * np.random.default_rng(0).normal(size=(30, 2))
    assert grows_outward(points, points / scale**2 if scale > 1e-100 else points / scale / scale)
    assert not grows_outward(points, -points / scale / scale)


def test_particles_at_modes_of_their_own_do_not_seem_to_grow_outward():
    generator = np.random.default_rng(0)
    points = generator.normal(size=(20, 3))
    assert not grows_outward(points, 1e-3 * points)
    assert not grows_outward(points, 0.05 * generator.normal(size=(20, 3)))


def test_what_cannot_be_judged_says_why():
    assert "one particle" in judge(np.zeros((1, 2)), np.ones((1, 2))).note
    assert "not finite" in judge(np.ones((3, 1)), np.full((3, 1), np.nan)).note
    assert "exactly zero" in judge(np.ones((3, 1)), np.zeros((3, 1))).note
    points = np.random.default_rng(0).normal(size=(30, 2))
    flat = judge(points, -points * np.array([1.0, 0.0]), ["a", "b"])
    assert list(flat.spread.low) == [False, True]


@pytest.mark.parametrize(("rows", "batch"), [(12, 4), (13, 4), (14, 4), (15, 4), (569, 32), (7, 7), (7, 1), (9, 8)])
def test_batches_add_up_to_all_rows_exactly(rows, batch):
    generator = np.random.default_rng(0)
    prior, gradients = 3.0, generator.normal(size=rows)
    passes, share = data_passes({"data": (rows, batch)}, budget=1000)
    assert share == 1
    assert all(len(chosen["data"]) == batch for chosen, _ in passes)
    total = sum(weight * (prior + rows / batch * gradients[chosen["data"]].sum()) for chosen, weight in passes)
    assert total == pytest.approx(prior + gradients.sum(), rel=1e-10)
    assert len(passes) <= rows // batch + 2


def test_a_budget_that_is_too_small_buys_disjoint_rows():
    passes, share = data_passes({"data": (1000, 10)}, budget=7)
    assert share == pytest.approx(0.07)
    chosen = np.concatenate([rows["data"] for rows, _ in passes])
    assert len(np.unique(chosen)) == 70
    assert sum(weight for _, weight in passes) == pytest.approx(1)


def test_errors_by_the_choice_of_rows_are_those_that_are_seen():
    """From many samples of the rows: the spread of the shift over them is what the errors say."""
    generator = np.random.default_rng(0)
    points = generator.normal(size=(20, 1))
    centres = generator.normal(size=1000)  # log p = −½ Σ_rows (x − row)²/1000, so that it is a standard Gaussian
    found, said = [], []
    for _ in range(200):
        rows = generator.permutation(1000)[:200].reshape(10, 20)
        scores = ScoreSum(points)
        for own in rows:
            scores.add(np.mean(centres[own]) - points, 1 / 10)
        found.append(points.std(ddof=1) * scores.total.mean())
        said.append(scores.errors(0.2).shift[0])
    assert np.sqrt(np.mean(np.square(said))) == pytest.approx(np.std(found), rel=0.15)


def test_rows_that_are_few_leave_a_shift_uncertain():
    points, scores = gaussian(np.random.default_rng(0), 100, 2, shift=1.0)
    assert judge(points, scores).shifted
    errors = RowErrors(np.full(2, 1.0), np.full(2, 0.1), 0.1, 10)
    assert not judge(points, scores, rows=errors).shifted


def test_a_large_shift_that_one_score_decides_is_unclear():
    """A particle at the foot of a cliff: the mean score is 2.5 with a standard error of 2.5."""
    for seed in range(5):
        points, scores = gaussian(np.random.default_rng(seed), 40, 2)
        scores[np.argmin(np.abs(points[:, 0])), 0] = 100.0
        verdict = judge(points, scores)
        assert verdict.unclear, verdict.sentence()
        assert verdict.sentence().startswith("UNCLEAR in the Stein check")
        assert "mean score" in verdict.worst_unclear()[0]


@pytest.mark.parametrize("n", [2, 3])
def test_very_few_particles_are_not_judged(n):
    points = 20 + np.random.default_rng(0).normal(size=(n, 3))
    assert judge(points, -points).passed is None


@pytest.mark.parametrize("n", [5, 10, 29])
def test_a_huge_shift_of_few_particles_does_not_pass(n):
    """One huge score, which nothing finds significant."""
    for seed in range(20):
        points, scores = gaussian(np.random.default_rng(seed), n, 2)
        scores[np.argmin(np.abs(points[:, 0])), 0] = 600.0
        verdict = judge(points, scores)
        assert not verdict.passed, verdict.sentence()
