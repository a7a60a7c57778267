"""The numbers of `Diagnostics`, by their definitions."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.inference.diagnostics import (
    MAX_COORDINATES,
    MAX_PARTICLES,
    batches,
    chain_numbers,
    directions,
    distance_along_directions,
    evenly_spaced,
    measure_mixing,
    row_noise,
    squared_discrepancy,
    stein_moments,
    stein_numbers,
)
from steinkern.inference.judge import MAX_SLOPE_RATIO
from steinkern.samplers.hamiltonian import ChainState

STILL = optax.sgd(1e-6)  # one object, one program


def cloud(n, d, seed=0):
    """Particles in units of their own, and scores that are no one's."""
    generator = np.random.default_rng(seed)
    return 3 + generator.normal(size=(n, d)) * 10.0 ** np.arange(-1, d - 1), generator.normal(size=(n, d)) - 0.3


def test_shift_spread_and_ratio_are_their_definitions():
    x, s = cloud(30, 3)
    found = stein_numbers(x, s)
    np.testing.assert_allclose(found.shift, [x[:, j].std(ddof=1) * s[:, j].mean() for j in range(3)], rtol=1e-10)
    np.testing.assert_allclose(found.spread, [-np.cov(x[:, j], s[:, j])[0, 1] for j in range(3)], rtol=1e-10)
    assert found.stein_ratio == pytest.approx(float(sk.stein_ratio(x, s)), rel=1e-10)
    errors = [x[:, j].std(ddof=1) * s[:, j].std(ddof=1) / 30**0.5 for j in range(3)]
    np.testing.assert_allclose(found.shift_error, errors, rtol=1e-10)
    terms = -(x - x.mean(0)) * s * 30 / 29
    np.testing.assert_allclose(found.spread_error, terms.std(axis=0, ddof=1) / 30**0.5, rtol=1e-10)
    assert found.stein_ratio_error == pytest.approx(terms.mean(axis=1).std(ddof=1) / 30**0.5, rel=1e-10)
    np.testing.assert_array_equal(found.coordinates, [0, 1, 2])
    assert found.num_measured == 30


def test_directions_are_combinations_of_coordinates_in_their_standard_deviations():
    x, s = cloud(40, 3)
    found, across = stein_numbers(x, s), directions(3)
    sd = x.std(axis=0, ddof=1)
    for k in (0, 63):
        along, pull = (x / sd) @ across[:, k], (s * sd) @ across[:, k]
        assert found.direction_shift[k] == pytest.approx(pull.mean() * along.std(ddof=1), rel=1e-8)
        assert found.direction_spread[k] == pytest.approx(-np.cov(along, pull)[0, 1], rel=1e-8)
    np.testing.assert_allclose(np.sum(across**2, axis=0), 1)


def test_the_discrepancy_is_that_of_the_library_in_standard_deviations():
    x, s = cloud(50, 2)
    sd = x.std(axis=0, ddof=1)
    assert stein_numbers(x, s).ksd ** 2 == pytest.approx(float(sk.ksd2((x - x.mean(0)) / sd, s * sd)), rel=1e-8)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (20, 3), (300, 2)], ids=str)
def test_the_discrepancy_on_the_host_is_that_of_the_library(n, d):
    random = np.random.default_rng(0)
    points, scores = random.standard_normal((n, d)), random.standard_normal((n, d))
    np.testing.assert_allclose(squared_discrepancy(points, scores), sk.ksd2(points, scores), rtol=1e-10)


@pytest.mark.parametrize(("n", "d"), [(30, 3), (MAX_PARTICLES + 100, 3), (5, MAX_COORDINATES + 44)], ids=str)
def test_a_device_has_the_numbers_of_the_host_and_many_are_measured_on_evenly_spaced_ones(n, d):
    generator = np.random.default_rng(0)
    x, s = generator.normal(size=(n, d)), generator.normal(size=(n, d))
    rows, columns = evenly_spaced(n, MAX_PARTICLES), evenly_spaced(d, MAX_COORDINATES)
    host, device = stein_numbers(x, s), stein_numbers(jnp.asarray(x), jnp.asarray(s))
    chosen = stein_numbers(x[rows][:, columns], s[rows][:, columns])
    assert len(host.shift) == min(d, MAX_COORDINATES)
    np.testing.assert_array_equal(host.coordinates, columns)
    for name in ("shift", "shift_error", "spread", "direction_spread", "stein_ratio", "ksd"):
        np.testing.assert_allclose(getattr(device, name), getattr(host, name), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(getattr(chosen, name), getattr(host, name), rtol=1e-9)


def test_units_change_nothing():
    x, s = cloud(60, 3)
    units = np.array([1e-8, 1.0, 1e6])
    plain, scaled = stein_numbers(x, s), stein_numbers(x * units + 5 * units, s / units)
    for name in ("shift", "spread", "direction_spread", "ksd"):
        np.testing.assert_allclose(getattr(scaled, name), getattr(plain, name), rtol=1e-6, atol=1e-9)


def test_batches_are_disjoint_while_there_are_rows():
    chosen, share = batches({"data": (1000, 10)}, 7)
    assert share == pytest.approx(0.07)
    assert len(np.unique(np.concatenate([rows["data"] for rows in chosen]))) == 70
    chosen, share = batches({"data": (40, 10)}, 50)
    assert share == 1
    np.testing.assert_array_equal(np.sort(np.concatenate([rows["data"] for rows in chosen])), np.arange(40))
    chosen, share = batches({"a": (100, 60), "b": (1000, 10)}, 50)
    assert len({tuple(rows["a"]) for rows in chosen}) == len(chosen) >= 5
    assert share <= 0.01


def test_errors_by_the_choice_of_rows_are_those_that_are_seen():
    """From many samples of the rows: the spread of the shift over them is what the errors say."""
    generator = np.random.default_rng(0)
    points = generator.normal(size=(20, 1))
    centers = generator.normal(size=1000)  # log p = −½ Σ_rows (x − row)²/1000, so that it is a standard Gaussian
    shifts, errors = [], []
    for _ in range(200):
        rows = generator.permutation(1000)[:200].reshape(10, 20)
        each = [stein_moments(points, np.mean(centers[chosen]) - points)[0] for chosen in rows]
        shifts.append(np.mean([averages[0] for averages in each]))
        errors.append(row_noise(each, 0.2)[0])
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(shifts), rel=0.15)


def test_a_run_with_minibatches_is_measured_on_all_rows_where_they_cover_them():
    data = np.random.default_rng(1).normal(size=(100, 2))
    target = sk.Posterior(gaussian, lambda x, row: gaussian(x - row), num_data=100)
    start = data.sum(axis=0) / 101 + np.random.default_rng(0).normal(size=(30, 2)) / 101**0.5
    result = sk.fit(jr.key(0), target, sk.svgd(optimizer=STILL), start, data, batch_size=25, num_steps=3)
    whole = stein_numbers(np.asarray(result.points), np.asarray(result.scores(data)))
    np.testing.assert_allclose(result.diagnostics.shift, whole.shift, rtol=1e-8)
    np.testing.assert_allclose(result.diagnostics.spread, whole.spread, rtol=1e-8)
    assert result.diagnostics.not_checked == ()
    part = sk.fit(jr.key(0), target, sk.svgd(optimizer=STILL), start, data, batch_size=10, num_steps=3)
    assert part.diagnostics.num_batches == 5
    assert "the rows outside of 5 minibatches" in part.summary()


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def test_minibatches_compile_nothing_for_the_numbers():
    calls = []

    def log_likelihood(x, row):
        calls.append(row)
        return gaussian(x - row)

    target, data = sk.Posterior(gaussian, log_likelihood, num_data=103), np.zeros((103, 2))

    def run(num_steps: int) -> int:
        start = np.random.default_rng(0).normal(size=(3, 2))
        sk.fit(jr.key(0), target, sk.svgd(optimizer=STILL), start, data, num_steps=num_steps, batch_size=10)
        return len(calls)

    first = run(1)
    assert run(1) == first
    assert run(130) == first


def test_the_convergence_of_chains_is_by_definition():
    draws = np.random.default_rng(0).normal(size=(50, 20, 2)) * [1.0, 100.0]
    mixing = measure_mixing(draws)
    for j in range(2):
        x = draws[:, :, j]
        means = x.mean(axis=0)
        assert mixing.mean_errors[j] == pytest.approx(means.std(ddof=1) / 20**0.5 / x.std(), rel=1e-10)
        within = x.var(axis=0, ddof=1).mean()
        assert mixing.r_hat[j] == pytest.approx(np.sqrt(49 / 50 + means.var(ddof=1) / within), rel=1e-10)


def draws_at(points, scores=None, log_densities=None):
    """States of chains at these points, with axes (transition, chain, coordinate)."""
    scores = -points if scores is None else scores
    values = -0.5 * np.sum(points**2, axis=-1) if log_densities is None else log_densities
    return ChainState(points, values, scores, np.ones(values.shape), np.zeros(len(points)), np.zeros(len(points)))


def test_numbers_of_chains_are_by_definition():
    generator = np.random.default_rng(0)
    points, scores = generator.normal(size=(50, 20, 2)), generator.normal(size=(50, 20, 2))
    acceptance = generator.uniform(size=(50, 20))
    draws = draws_at(points, scores)._replace(acceptance=acceptance)
    found, mixing = chain_numbers(sk.Diagnostics(), draws), measure_mixing(points)
    np.testing.assert_allclose(found.r_hat, mixing.r_hat)
    np.testing.assert_allclose(found.chain_errors, np.maximum(mixing.mean_errors, mixing.sd_errors))
    unit = (points - points.mean(axis=(0, 1))) / points.std(axis=(0, 1))
    np.testing.assert_allclose(found.fourth_moment, (unit**4).mean(axis=(0, 1)))
    assert found.acceptance == pytest.approx(acceptance.mean())
    assert found.lowest_acceptance == pytest.approx(acceptance.mean(axis=0).min())


def test_modes_are_clusters_of_chains_and_not_the_widths_or_places_of_a_funnel():
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(100, 100, 3))
    along = np.eye(3)[0]

    def clusters(points, log_densities=None):
        return chain_numbers(sk.Diagnostics(), draws_at(points, log_densities=log_densities)).num_clusters

    assert clusters(noise) == 1
    for share, number in ((0.1, 2), (0.5, 2), (0.01, 1)):  # a chain on its own is no evidence
        centers = 10.0 * (np.arange(100) < 100 * share)
        assert clusters(noise + centers[:, None] * along, -0.5 * np.sum(noise**2, axis=-1)) == number
    # A funnel: every chain is at a place of its own along its width, and as wide as it is there.
    places = 3 * generator.normal(size=100)
    funnel = np.concatenate([places[:, None] + 0.3 * noise[..., :1], np.exp(places / 2)[:, None] * noise[..., 1:]], -1)
    assert clusters(funnel, -places - 0.5 * np.sum(noise**2, axis=-1)) == 1
    # Half of its chains in its narrow end: two places, but log densities that differ within them.
    places = np.where(np.arange(100) < 50, -10 + generator.normal(size=100), 10.0)
    ends = places[:, None] + noise[..., :1]
    assert clusters(np.concatenate([ends, noise[..., 1:]], -1), -18 * places - 0.5 * np.sum(noise**2, axis=-1)) == 1


def test_the_slope_ratio_is_that_of_the_ends_of_a_funnel_and_1_for_a_gaussian():
    generator = np.random.default_rng(0)
    width, unit = generator.normal(size=(100, 100, 1)), generator.normal(size=(100, 100, 9))
    scale = np.exp(1.5 * width)  # of slopes 1/scale: their logarithm falls by 1.5 in a standard deviation
    score = -width + 1.5 * np.sum(unit**2 - 1, axis=-1, keepdims=True)
    draws = draws_at(np.concatenate([width, scale * unit], -1), np.concatenate([score, -unit / scale], -1))
    ratios = chain_numbers(sk.Diagnostics(), draws).slope_ratio  # of 4,096 draws, which leave a few percent of noise
    assert np.log(ratios[0]) == pytest.approx(-1.5 * 2.56, rel=0.1)
    np.testing.assert_allclose(ratios[1:], 1, atol=0.3)
    mixing = generator.normal(size=(10, 10))
    points = np.concatenate([width, unit], -1)
    gaussian = draws_at(points @ mixing.T, -points @ np.linalg.inv(mixing))
    np.testing.assert_allclose(chain_numbers(sk.Diagnostics(), gaussian).slope_ratio, 1, atol=0.2)
    assert chain_numbers(sk.Diagnostics(), draws_at(width)).slope_ratio == [1.0]


@pytest.mark.parametrize("slope", [lambda x: np.where(np.abs(x) < 1, 0.0, -x), lambda x: -(x**9)])
def test_slopes_that_are_zero_or_tiny_at_many_draws_are_no_funnel(slope):
    points = np.random.default_rng(0).normal(size=(100, 100, 2))
    ratios = chain_numbers(sk.Diagnostics(), draws_at(points, slope(points))).slope_ratio
    assert np.abs(np.log(ratios)).max() < np.log(MAX_SLOPE_RATIO)  # more than five standard errors


def test_the_distance_along_directions_is_kolmogorovs():
    one, two = np.arange(4.0)[:, None], np.arange(4.0)[:, None] + 1.5  # of 4 points, 2 are below all others
    assert distance_along_directions(np.random.default_rng(0), one, two) == pytest.approx(0.5)
    assert distance_along_directions(np.random.default_rng(0), one, one) == 0
