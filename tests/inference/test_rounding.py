"""What float32 cannot hold: two tests, beside numbers that are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.rounding import check_rounding, log_density_rounding, too_coarse

NAMES = ["a", "b"]


def column(number, sd):
    """Two particles of this mean and standard deviation."""
    return np.array([[number - sd], [number + sd]])


@pytest.mark.parametrize("exponent", [-100, 0, 3, 20])
def test_a_coordinate_is_too_coarse_below_a_hundred_spacings(exponent):
    number, spacing = 2.0**exponent, 2.0 ** (exponent - 23)  # float32 has 23 binary digits after the first
    assert too_coarse(column(1.5 * number, 99 * spacing)).all()
    assert not too_coarse(column(1.5 * number, 101 * spacing)).any()
    assert not too_coarse(column(0.0, number)).any()


def test_a_coordinate_that_is_0_everywhere_is_exact_and_one_that_is_a_number_everywhere_is_not():
    assert not too_coarse(np.zeros((5, 1))).any()
    assert too_coarse(np.full((5, 1), 1e9)).all()


def test_the_rounding_of_a_log_density_is_its_size_times_half_a_spacing_at_one():
    np.testing.assert_array_equal(log_density_rounding(np.array([-1, -(2.0**23), np.inf, 2**24], np.float32)), 1.0)
    np.testing.assert_array_equal(log_density_rounding(np.array([2.0**52])), 1.0)
    assert log_density_rounding(np.array([np.nan], np.float32)) == 0


def notices(points, particles=None, log_densities=None):
    particles = points if particles is None else particles
    return [notice.text for notice in check_rounding(points, particles, NAMES.__getitem__, log_densities)]


def test_one_notice_has_all_reasons():
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    assert notices(points) == notices(points, log_densities=np.full(50, -8e5, np.float32)) == []
    (text,) = notices(points + np.float32(1e6) * np.array([0, 1], np.float32), log_densities=np.full(50, -9e5, "f4"))
    assert "'b' is below 100 spacings" in text
    assert "the log density, near -9e+05, is rounded by 0.11" in text


def test_constrained_coordinates_count_where_they_vary():
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    near_one = {"corner": np.ones((50, 1), np.float32), "share": 1 - np.float32(1e-6) * points}
    (text,) = notices(points, near_one)
    assert "'share[0]' and 1 more" in text
    assert notices(points, {"corner": near_one["corner"], "share": points}) == []


def test_a_scale_far_above_a_large_bound_is_told_by_its_constrained_coordinate():
    space = sk.LogDensity(lambda p: 0.0, support=sk.greater_than(1e7)).bind(np.zeros((), np.float32)).space
    points = np.random.default_rng(0).normal(size=(50, 1)).astype(np.float32)
    particles = np.stack([np.asarray(space.constrain(jnp.asarray(point))) for point in points]).astype(np.float32)
    (text,) = notices(points, particles)
    assert "float32 is too coarse" in text
