"""PSIS: ArviZ's numbers, closed forms of the tail, k̂ of Gaussians against known targets, and what is refused."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.results.importance import fit_generalised_pareto


def pareto_quantiles(shape, number, scale=1.0):
    """The quantiles of a generalised Pareto distribution at (i − ½)/number: no draw, so no key."""
    levels = (np.arange(number) + 0.5) / number
    return scale * (np.expm1(-shape * np.log1p(-levels)) / shape if shape else -np.log1p(-levels))


@pytest.mark.filterwarnings("ignore")  # ArviZ announces its successor, and overflows where weights are far apart
@pytest.mark.parametrize("efficiency", [1.0, 0.4])
@pytest.mark.parametrize("number", [30, 200, 5000])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 30.0, 1000.0])
def test_weights_and_k_hat_are_those_of_arviz(spread, number, efficiency, generator):
    arviz = pytest.importorskip("arviz")
    if not hasattr(arviz, "psislw"):
        pytest.skip("ArviZ 1.x has it elsewhere")
    log_weights = spread * generator.normal(size=number) - 7.0
    expected, k_hat = arviz.psislw(log_weights, reff=efficiency)
    found = sk.psis(log_weights, efficiency)
    np.testing.assert_allclose(found.k_hat, k_hat, rtol=1e-10)
    np.testing.assert_allclose(found.log_weights, expected, rtol=1e-10, atol=1e-10)


def slow_fit(excesses):
    """The estimate of Zhang and Stephens, number by number."""
    n = len(excesses)
    size = 30 + int(np.sqrt(n))
    grid, heights = [], []
    for i in range(1, size + 1):
        b = 1 / max(excesses) + (1 - np.sqrt(size / (i - 0.5))) / (3 * excesses[int(n / 4 + 0.5) - 1])
        k = sum(np.log(1 - b * x) for x in excesses) / n
        sigma = -k / b
        # The logarithm of the density of a generalised Pareto distribution, summed over the excesses.
        grid.append(b)
        heights.append(sum(-np.log(sigma) - (1 / k + 1) * np.log(1 + k * x / sigma) for x in excesses))
    weights = [np.exp(height - max(heights)) for height in heights]
    b = sum(weight * value for weight, value in zip(weights, grid, strict=True)) / sum(weights)
    k = sum(np.log(1 - b * x) for x in excesses) / n
    return (n * k + 5) / (n + 10), -k / b


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.9])
def test_the_fit_is_that_of_the_definition(shape):
    excesses = pareto_quantiles(shape, 40, scale=2.5)
    np.testing.assert_allclose(fit_generalised_pareto(excesses), slow_fit(excesses), rtol=1e-9)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.3, 0.6, 1.2])
def test_a_pareto_tail_of_known_shape_is_found(shape):
    """A tail of a generalised Pareto distribution is one of the same shape; the prior draws k̂ by 10/n towards ½."""
    number = 100_000
    found = sk.psis(np.log(pareto_quantiles(shape, number)))
    tail = np.ceil(3 * np.sqrt(number))
    shrunk = (tail * shape + 5) / (tail + 10)
    assert found.k_hat == pytest.approx(shrunk, abs=0.04)  # quantiles lack the largest draws, by 1/tail of them
    assert found.reliable == (shape < 0.7)


@pytest.mark.parametrize(("width", "shape"), [(0.5, 0.75), (0.8, 0.36), (2.0, -3.0)])
def test_k_hat_of_a_gaussian_against_a_gaussian_has_the_sign_of_the_closed_form(width, shape):
    """Draws of N(0, width²) weighted to N(0, 1): w > t has probability t^(−1/k) with k = 1 − width²; bounded from 1 on.

    Log factors make the tail converge slowly, so the estimate is only compared coarsely.
    """
    levels = (np.arange(200_000) + 0.5) / 200_000
    z = np.sqrt(2) * np.asarray(jax.scipy.special.erfinv(jnp.asarray(2 * levels - 1)))
    found = sk.psis(-0.5 * (width * z) ** 2 + 0.5 * z**2).k_hat
    assert found < 0 if shape < 0 else found == pytest.approx(shape, abs=0.2)


def test_equal_weights_have_no_tail_and_every_draw_counts():
    found = sk.psis(np.full(500, -3.0))
    assert found.k_hat == -np.inf
    assert found.reliable
    assert found.effective_sample_size == pytest.approx(500)
    noisy = sk.psis(np.float32(-3.0) + np.float32(2e-7) * np.arange(500, dtype=np.float32) / 500)
    assert noisy.k_hat == -np.inf


def test_draws_without_weight_stay_without_it(generator):
    log_weights = generator.normal(size=300)
    log_weights[:50] = -np.inf
    found = sk.psis(log_weights)
    assert np.all(found.weights[:50] == 0)
    assert found.weights.sum() == pytest.approx(1)
    assert found.effective_sample_size < 250


def test_few_weights_are_never_called_reliable():
    found = sk.psis(np.array([0.0, -1.0, -2.0]))
    assert found.k_hat == np.inf
    assert not found.reliable
    assert "too few" in found.sentence()
    assert not sk.psis([1.0]).reliable


def test_smoothing_lowers_the_largest_weight_and_keeps_the_order(generator):
    log_weights = 2.0 * generator.standard_t(3, size=2000)
    found = sk.psis(log_weights)
    assert np.all(np.diff(found.log_weights[np.argsort(log_weights)]) >= 0)
    raw = np.exp(log_weights - log_weights.max())
    assert found.weights.max() <= raw.max() / raw.sum() * 1.0000001 or found.k_hat > 0.7
    assert found.draws_needed == (10 ** (1 / (1 - max(found.k_hat, 0))) if found.k_hat < 1 else np.inf)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (np.zeros((3, 4)), r"`log_weights` must be one real number for each draw, shape \(S,\), got shape \(3, 4\)"),
        (np.array([0.0, np.nan]), "got NaN or .inf in 1 of 2"),
        (np.array([0.0, np.inf]), "got NaN or .inf in 1 of 2"),
        (np.full(3, -np.inf), "no draw has any weight"),
        (np.zeros(0), "must be one real number for each draw"),
        ("text", "`log_weights` must be an array of numbers"),
    ],
)
def test_what_are_no_weights_is_refused(bad, told):
    with pytest.raises(ValueError, match=told):
        sk.psis(bad)
    with pytest.raises(ValueError, match="`relative_efficiency` must be a positive number, got 0"):
        sk.psis(np.zeros(30), 0)


def result_of(log_density, points, support=None):
    """Particles that stay where they are: the result of a fit of no consequence."""
    target = sk.LogDensity(log_density, support=support)
    return sk.fit(jr.key(0), target, sk.sgld(1e-12), points, num_steps=1)


def normal_scores(n):
    """Points whose mean is 0 and whose standard deviation is 1."""
    points = jr.normal(jr.key(3), (n, 2))
    white = jnp.linalg.cholesky(jnp.linalg.inv(jnp.cov(points, rowvar=False)))
    return (points - points.mean(axis=0, keepdims=True)) @ white


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_the_gaussian_of_the_particles_is_weighed_against_the_target():
    scale = jnp.array([2.0, 0.1])
    exact = result_of(lambda x: -0.5 * jnp.sum((x / scale) ** 2), normal_scores(200) * scale[None])
    found = sk.gaussian_psis(jr.key(1), exact, num_draws=1000)
    assert found.effective_sample_size > 990
    assert found.reliable
    assert found.particles.shape == (1000, 2)
    narrow = result_of(lambda x: -0.5 * jnp.sum((x / scale) ** 2), 0.3 * normal_scores(200) * scale[None])
    assert not sk.gaussian_psis(jr.key(1), narrow).reliable


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_weights_are_of_the_density_in_unconstrained_coordinates_and_draws_in_constrained_ones():
    """If log(x) is standard normal, the Gaussian is exact in unconstrained coordinates, where positive x are logs."""

    def log_normal(x):
        return -0.5 * jnp.log(x) ** 2 - jnp.log(x)

    result = result_of(log_normal, jnp.exp(normal_scores(300)[:, 0]), sk.positive)
    found = sk.gaussian_psis(jr.key(2), result, num_draws=500)
    assert found.effective_sample_size > 495
    assert np.all(found.particles > 0)
    assert found.weights @ found.particles == pytest.approx(np.exp(0.5), abs=4 * np.sqrt((np.e - 1) * np.e / 500))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_data_are_those_of_the_fit():
    posterior = sk.Posterior(lambda x: -0.5 * x**2, lambda x, y: -0.5 * (y - x) ** 2, 3)
    data = jnp.array([1.0, 2.0, 3.0])
    points = 1.5 + 0.5 * normal_scores(100)[:, 0]
    result = sk.fit(jr.key(0), posterior, sk.sgld(1e-12), points, data, num_steps=1)
    assert sk.gaussian_psis(jr.key(1), result, data, num_draws=300).effective_sample_size > 297
    with pytest.raises(ValueError, match="`data` is missing"):
        sk.gaussian_psis(jr.key(1), result)


@pytest.mark.thorough
@pytest.mark.usefixtures("as_installed")
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_particles_that_give_no_gaussian_are_refused():
    few = result_of(lambda x: -0.5 * jnp.sum(x**2), jr.normal(jr.key(0), (3, 5)))
    with pytest.raises(
        ValueError, match="`result` must have more particles than its 5 coordinates for a Gaussian, got 3"
    ):
        sk.gaussian_psis(jr.key(1), few)
    wide = result_of(lambda x: -0.5 * jnp.sum(x**2), normal_scores(50))
    copies = wide.resample(jr.key(0), 1).resample(jr.key(0), 9, replace=True)
    with pytest.raises(ValueError, match="must have particles that span all 2 coordinates, got collapsed ones"):
        sk.gaussian_psis(jr.key(1), copies)
    edge = result_of(lambda x: jnp.where(x[0] < 3.2, -0.5 * jnp.sum(x**2), jnp.nan), normal_scores(50))
    with pytest.raises(ValueError, match=r"log density is NaN at \d+ of 50000 draws"):
        sk.gaussian_psis(jr.key(1), edge, num_draws=50_000)
    with pytest.raises(ValueError, match="`result` must be what `fit` or `sample` return, got ndarray"):
        sk.gaussian_psis(jr.key(1), np.zeros((5, 2)))
