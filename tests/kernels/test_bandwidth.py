"""The median bandwidth against NumPy's median over explicit pairs."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import chi2

import steinkern as sk
from steinkern.kernels import bandwidth as module
from steinkern.kernels.bandwidth import median_by_sorting, median_of_pairs

precisions = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
TOLERANCE = {jnp.float32: 1e-5, jnp.float64: 1e-10}  # of single precision: some tens of roundings
PLAIN = sk.Median(factor=1.0)
bandwidths = jax.jit(jax.vmap(PLAIN))


@eqx.filter_jit
def bandwidth(rule, points):
    return rule(points)


def stated(points, factor: float = 1.0) -> float:
    """The rule in words, on distances in double precision: the median, else the mean, else 1."""
    r2 = pdist(np.asarray(points, np.float64), "sqeuclidean")
    return factor * float(np.median(r2) or np.mean(r2) or 1.0)


def matrices_of_pairs(n: int, dtype, generator) -> np.ndarray:
    """Symmetric matrices r² of many kinds, 0 on the diagonal."""
    normal = generator.standard_normal((50, n, n))
    values = np.concatenate(
        [
            normal[:10] ** 2,
            np.round(normal[10:20] ** 2),  # ties, many of them zeros
            np.exp(12 * normal[20:30]),  # the mean is far above the median
            1 + 1e-6 * normal[30:40],  # almost equal
            np.where(normal[40:] > 1, normal[40:] ** 2, 0),  # mostly zeros
        ]
    )
    upper = np.triu(values.astype(dtype), 1)
    return upper + upper.transpose(0, 2, 1)


def assert_medians_are_numpys(numbers, dtype, generator, median=median_of_pairs):
    batches = [matrices_of_pairs(n, dtype, generator) for n in numbers]
    medians = jax.jit(lambda batches: [jax.vmap(median)(r2)[0] for r2 in batches])(batches)
    for n, r2, actual in zip(numbers, batches, medians, strict=True):
        assert actual.dtype == dtype
        expected = np.median(r2[:, *np.triu_indices(n, 1)], axis=1)
        np.testing.assert_array_equal(actual, expected, err_msg=f"{n} particles")


@pytest.mark.every(2)
@precisions
def test_few_pairs_and_many_have_exactly_the_median_of_numpy(dtype, generator):
    assert_medians_are_numpys(range(2, 18), dtype, generator)


@pytest.mark.thorough
@precisions
def test_the_search_for_many_pairs_is_exact_for_few_as_well(dtype, generator, monkeypatch):
    monkeypatch.setattr(module, "_MAX_COMPARED_PAIRS", 0)
    assert_medians_are_numpys([2, 5, 16], dtype, generator)


@precisions
def test_sorting_is_exact(dtype, generator):
    assert_medians_are_numpys([2, 5, 16], dtype, generator, median_by_sorting)


@pytest.mark.thorough
@precisions
def test_few_pairs_and_many_give_the_same_bandwidth_where_points_are_not_finite(dtype, generator, monkeypatch):
    points = generator.standard_normal((6, 9, 3)).astype(dtype)
    points[0, 0] = np.sqrt(np.finfo(dtype).max)  # its square is infinite
    points[1, :6] = points[0, 0]
    points[2, 3, 1] = np.inf
    points[3, :, 1] = np.inf
    points[4, 3, 1] = np.nan
    points[5] = np.nan
    few = jax.jit(jax.vmap(PLAIN))(points)
    monkeypatch.setattr(module, "_MAX_COMPARED_PAIRS", 0)
    many = jax.jit(jax.vmap(lambda cloud: PLAIN(cloud)))(points)  # another function, or its program were found again
    monkeypatch.setattr(module, "median_of_pairs", lambda r2, alone: median_by_sorting(r2))  # as on a GPU
    by_sorting = jax.jit(jax.vmap(lambda cloud: PLAIN(cloud)))(points)
    for other in (many, by_sorting):  # programs of their own, each with its distances
        np.testing.assert_allclose(few, other, rtol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_few_pairs_of_which_one_is_not_finite_have_no_median(bad, generator):
    r2 = matrices_of_pairs(5, np.float64, generator)[0]
    r2[1, 3] = r2[3, 1] = bad
    assert jnp.isnan(median_of_pairs(jnp.asarray(r2))[0])


def _generic(rng):
    return rng.standard_normal((9, 3))


def _with(points, index, value):
    points[index] = value
    return points


CLOUDS = {
    "generic": _generic,
    "one dimension": lambda rng: rng.standard_normal((9, 1)),
    "a lattice with ties": lambda rng: rng.integers(0, 3, (9, 3)).astype(float),
    "some duplicates": lambda rng: _with(_generic(rng), slice(0, 3), 0.5),
    "a constant coordinate": lambda rng: _with(_generic(rng), (slice(None), 1), 0.1),
    "a shifted cloud": lambda rng: _generic(rng) + 8,
    "more than half the pairs coincide": lambda rng: _with(_generic(rng), slice(0, 7), 0.5),
    "one far particle": lambda rng: _with(_generic(rng), 0, 1e6),
    "a tiny cloud": lambda rng: 1e-10 * _generic(rng),
    "a huge cloud": lambda rng: 1e10 * _generic(rng),
    "all coincide": lambda rng: np.tile(rng.standard_normal(3), (9, 1)),
}


@precisions
@pytest.mark.parametrize("make", CLOUDS.values(), ids=CLOUDS.keys())
def test_bandwidth_is_the_factor_times_the_median_over_distinct_pairs(make, dtype, generator):
    points = jnp.asarray(make(generator).astype(dtype))
    actual = bandwidth(PLAIN, points)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, stated(points), rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(bandwidth(sk.Median(factor=0.3), points), 0.3 * actual, rtol=4 * jnp.finfo(dtype).eps)


@pytest.mark.parametrize("n", [1, 9])
def test_the_default_factor_is_the_median_trick(n, generator):
    points = generator.standard_normal((n, 3))
    expected = stated(points, 1 / (2 * math.log(n + 1))) if n > 1 else 1 / (2 * math.log(2))
    np.testing.assert_allclose(bandwidth(sk.Median(), jnp.asarray(points)), expected, rtol=1e-10)


@precisions
@pytest.mark.parametrize("coincident", [7, 9])
def test_rounding_does_not_pass_for_distance_in_many_dimensions(coincident, dtype, generator):
    """‖x‖² + ‖y‖² − 2x·y of equal points need not round to zero: their median would be a bandwidth near 1e-16."""
    clouds = generator.standard_normal((20, 9, 50)).astype(dtype)
    clouds[:, :coincident] = clouds[:, :1]
    actual = bandwidths(jnp.asarray(clouds))
    np.testing.assert_allclose(actual, [stated(cloud) for cloud in clouds], rtol=TOLERANCE[dtype])


def test_bandwidths_of_a_batch_of_clouds_under_vmap_are_those_of_each(generator):
    names = [name for name, make in CLOUDS.items() if make(generator).shape == (9, 3)]
    clouds = np.stack([CLOUDS[name](generator) for name in names])
    actual = bandwidths(jnp.asarray(clouds))
    np.testing.assert_allclose(actual, [stated(cloud) for cloud in clouds], rtol=1e-10)


def test_above_the_largest_number_particles_are_thinned_but_the_factor_counts_all(generator):
    points = jnp.asarray(generator.standard_normal((10, 3)))
    expected = stated(points[::2], 0.5 / math.log(11))
    np.testing.assert_allclose(bandwidth(sk.Median(max_points=5), points), expected, rtol=1e-10)
    np.testing.assert_allclose(
        bandwidth(sk.Median(max_points=10), points), stated(points, 0.5 / math.log(11)), rtol=1e-10
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "d"), [(501, 2), (2000, 10)])
def test_the_subsampled_median_has_the_stated_error(n, d, key):
    """The relative standard error is at most 5 percent by default.

    The root mean square over 100 clouds is itself known to 1/√200 = 7 percent; three of those make the allowance.
    """

    def one(key):
        return PLAIN(jr.normal(key, (n, d)))

    error = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(key, 100))) / (2 * chi2(d).median()) - 1
    assert np.sqrt(np.mean(error**2)) < 0.05 * (1 + 3 / math.sqrt(200))


@pytest.mark.every(2)
@precisions
def test_a_particle_that_is_not_a_number_leaves_no_bandwidth(dtype, generator):
    for n in (9, 40):  # few pairs, and many
        points = generator.standard_normal((n, 3)).astype(dtype)
        points[n // 2, 1] = np.nan
        assert np.isnan(bandwidth(sk.Median(), jnp.asarray(points)))


@pytest.mark.thorough
@precisions
def test_clusters_of_equal_size_take_no_longer_than_halving(dtype, generator, monkeypatch):
    points = 1e-3 * generator.standard_normal((100, 2)).astype(dtype)
    points[:50] += 1e4
    passes, count = [], module._count

    def counted(*arguments):
        jax.debug.callback(lambda: passes.append(1))
        return count(*arguments)

    monkeypatch.setattr(module, "_count", counted)
    jax.block_until_ready(jax.jit(lambda points: sk.Median()(points))(jnp.asarray(points)))
    jax.effects_barrier()
    assert len(passes) <= 8 + (30 if dtype == jnp.float32 else 60)
