"""Discrepancies against their definitions, their invariances, and their expectation at exact draws."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.linalg.metrics import DenseMetric
from tests.helpers.cases import KERNEL_CASES, SOME_KERNELS, KernelCase, over
from tests.helpers.oracles import assert_close, median_bandwidth

# Compiling these takes longer than running them.
jit = partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0})
mmd2 = jit(sk.mmd2)
RBF = sk.kernels.Isotropic(sk.RBF(0.8))


def points_and_scores(key, n, d):
    """Points and unrelated scores: nothing can cancel by accident."""
    return jr.normal(key, (2, n, d))


def stein_kernel(kernel, points, scores):
    """The Stein kernel (K P_x) P_y for every pair, by automatic differentiation of the d×d matrix K(x, y)."""

    def pair(x, y, score_x, score_y):
        def by_source(x):  # K P_y = K(x, y) s_y + K(x, y)∇_y
            derivative, value = jax.jacfwd(lambda y: (kernel(x, y),) * 2, has_aux=True)(y)
            vector = value @ score_y + jnp.einsum("lmm->l", derivative)
            return vector, vector

        jacobian, vector = jax.jacfwd(by_source, has_aux=True)(x)
        return jnp.vdot(score_x, vector) + jnp.trace(jacobian)

    over_y = jax.vmap(pair, (None, 0, None, 0))
    return jax.vmap(over_y, (0, None, 0, None))(points, points, scores, scores)


@jit
def u_and_v(kernel, points, scores):
    return jnp.stack([sk.ksd2(points, scores, kernel, statistic) for statistic in ("U", "V")])


@jit
def ksd2_and_pairs(kernel, points, scores, statistic):
    return sk.ksd2(points, scores, kernel, statistic), stein_kernel(kernel, points, scores)


@pytest.mark.every(4)
@over(KERNEL_CASES, SOME_KERNELS - {"user"})
def test_the_v_statistic_of_ksd_is_the_mean_of_the_stein_kernel(case: KernelCase, key):
    kernel_key, points_key = jr.split(key)
    actual, pairs = ksd2_and_pairs(case.make(kernel_key), *points_and_scores(points_key, 4, case.dim), "V")
    assert_close(actual, jnp.mean(pairs))


U_CASES = {"isotropic imq", "linear", "preconditioned, blocks", "tilted"}  # the statistic is the same code for all


@over([case for case in KERNEL_CASES if case.name in U_CASES], {"linear", "tilted"})
def test_the_u_statistic_of_ksd_is_that_mean_without_the_diagonal(case: KernelCase, key):
    kernel_key, points_key = jr.split(key)
    actual, pairs = ksd2_and_pairs(case.make(kernel_key), *points_and_scores(points_key, 4, case.dim), "U")
    assert_close(actual, (jnp.sum(pairs) - jnp.trace(pairs)) / (4 * 3))


def test_ksd_takes_the_median_bandwidth_of_the_particles_by_default(key):
    points, scores = points_and_scores(key, 9, 3)
    expected = jit(sk.ksd2)(points, scores, sk.RBF(median_bandwidth(points)))
    assert_close(jit(sk.ksd2)(points, scores), expected)


@pytest.mark.parametrize("kernel", [sk.RBF(0.8), sk.IMQ(0.8)], ids=["rbf", "imq"])
def test_ksd_keeps_its_digits_far_from_the_origin(kernel, key):
    points, scores = points_and_scores(key, 8, 2)
    points = jnp.round(points * 2**20) / 2**20  # so that the shift itself is exact
    assert_close(u_and_v(kernel, points + 2.0**30, scores), u_and_v(kernel, points, scores))


def standardised(values):
    """The mean over replications in units of its standard error."""
    return jnp.mean(values) / (jnp.std(values) / np.sqrt(values.size))


@pytest.fixture
def draws(key):
    """5000 replications of ten exact draws from N(0, I) in the plane, where the score is −x."""
    return jr.normal(key, (5000, 10, 2))


KSD_KERNELS = {
    "rbf": sk.RBF(0.8),
    "preconditioned imq": sk.kernels.Preconditioned(
        sk.kernels.Isotropic(sk.IMQ(1.0)), DenseMetric.of(jnp.array([[2.0, 0.4], [0.4, 0.5]]))
    ),
}
ksd_kernels = pytest.mark.parametrize("kernel", KSD_KERNELS.values(), ids=KSD_KERNELS.keys())


@ksd_kernels
def test_the_u_statistic_of_ksd_has_mean_zero_at_exact_draws(kernel, draws):
    values = jit(jax.vmap(lambda points: sk.ksd2(points, -points, kernel, "U")))(draws)
    assert jnp.abs(standardised(values)) < 4
    assert jnp.min(values) < 0 < jnp.max(values)


def pair_sums(a, b, kernel):
    """Σ_ij k(a_i, b_j) in two loops, and the same without i = j."""
    total = without = 0.0
    for i, x in enumerate(np.asarray(a)):
        for j, y in enumerate(np.asarray(b)):
            value = kernel(np.sum((x - y) ** 2))
            total, without = total + value, without + (value if i != j else 0.0)
    return total, without


SCALAR_KERNELS = {
    "rbf": (sk.RBF(0.8), lambda r2: np.exp(-r2 / 1.6)),
    "imq": (sk.IMQ(0.8), lambda r2: (1 + r2 / 0.8) ** -0.5),
}


@pytest.mark.parametrize(("kernel", "function"), SCALAR_KERNELS.values(), ids=SCALAR_KERNELS.keys())
def test_mmd_is_the_mean_over_pairs(kernel, function, key):
    n, m = 5, 7
    points, reference = jr.normal(key, (n, 2)), 0.5 + jr.normal(jr.fold_in(key, 1), (m, 2))
    xx, yy, xy = (pair_sums(a, b, function) for a, b in ((points, points), (reference, reference), (points, reference)))
    cross = 2 * xy[0] / (n * m)
    assert_close(mmd2(points, reference, kernel), xx[0] / n**2 + yy[0] / m**2 - cross)
    unbiased = xx[1] / (n * (n - 1)) + yy[1] / (m * (m - 1)) - cross
    assert_close(mmd2(points, reference, kernel, biased=False), unbiased)


def test_mmd_takes_the_median_bandwidth_of_the_reference_by_default(key):
    points, reference = jr.normal(key, (5, 2)), 3 * jr.normal(jr.fold_in(key, 1), (8, 2))
    assert_close(mmd2(points, reference), mmd2(points, reference, sk.RBF(median_bandwidth(reference))))


def test_unbiased_mmd_has_mean_zero_between_samples_of_one_law(draws):
    def both(points):
        return tuple(sk.mmd2(points[:4], points[4:], sk.RBF(0.8), biased) for biased in (False, True))

    unbiased, biased = jit(jax.vmap(both))(draws)
    assert jnp.abs(standardised(unbiased)) < 4
    assert jnp.min(biased) >= 0
    assert standardised(biased) > 10


def test_stein_ratio_is_its_definition(key):
    points, scores = points_and_scores(key, 5, 3)
    mean = np.mean(points, axis=0)
    total = sum(np.dot(x - mean, s) for x, s in zip(np.asarray(points), np.asarray(scores), strict=True))
    assert_close(jit(sk.stein_ratio)(points, scores), -total / (4 * 3))


def test_stein_ratio_has_mean_one_at_exact_draws_and_falls_as_they_collapse(draws):
    # Its scores are those of N(0, I), so particles drawn together by the factor c have the ratio c² R.
    ratio = jit(jax.vmap(lambda points: sk.stein_ratio(points, -points)))
    assert jnp.abs(standardised(ratio(draws) - 1)) < 4
    assert_close(ratio(0.5 * draws), 0.25 * ratio(draws))


def test_stein_ratio_of_one_particle_is_not_a_number(key):
    assert jnp.isnan(sk.stein_ratio(*points_and_scores(key, 1, 3)))
