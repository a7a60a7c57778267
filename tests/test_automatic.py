"""`sample`: two cheap targets end to end, each rule on its own, and what it says where it cannot be right."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.automatic.chains import measured_metric, one_round
from steinkern.automatic.control import moments_by_stein
from steinkern.automatic.gaussian import even_noise, metric_of, nearest_gaussian
from steinkern.automatic.mixing import drifting, mixing, settled
from steinkern.automatic.placing import nearest_draws, placed, with_moments
from steinkern.automatic.quality import along_directions
from steinkern.metric import DenseMetric
from tests.conftest import compiled_quickly

MEAN, SDS = np.array([3.0, -200.0]), np.array([1e-3, 50.0])


def badly_scaled(x):
    return -0.5 * jnp.sum(((x - MEAN) / SDS) ** 2)


def funnel(x):
    return -(x[0] ** 2) / 18 - 0.5 * jnp.sum(x[1:] ** 2 * jnp.exp(-x[0])) - x[0]


def bound(function, d=2):
    return sk.LogDensity(function).bind(jnp.zeros(d))


@pytest.fixture(scope="module")
def on_a_gaussian():
    with compiled_quickly():
        return sk.sample(jr.key(0), badly_scaled, np.zeros(2))


def test_a_badly_scaled_gaussian_is_found_from_afar_and_nothing_warns(on_a_gaussian):
    points = np.asarray(on_a_gaussian.particles)
    assert points.shape == (100, 2)
    # Moments are exact on a Gaussian, but for the ridge of the regressions, 1e-8 of their scale.
    np.testing.assert_allclose((points.mean(0) - MEAN) / SDS, 0, atol=1e-5)
    np.testing.assert_allclose(points.std(0), SDS, rtol=1e-5)
    assert on_a_gaussian.status is sk.Status.CONVERGED
    assert on_a_gaussian.warnings == ()


def test_what_it_says_of_itself_is_true_of_a_gaussian(on_a_gaussian):
    quality, cost = on_a_gaussian.quality, on_a_gaussian.cost
    assert quality.mean_errors.max() < 1e-6  # Stein's identity leaves no noise on a Gaussian
    assert quality.r_hat < 1.02
    assert abs(quality.stein_ratio - 1) < 0.1
    assert quality.direction_error < 0.15
    assert cost.sequential < 1000
    assert cost.in_gradients(2) == cost.values + cost.gradients + 2 * cost.hessians
    assert "R-hat" in on_a_gaussian.summary()


def test_the_result_goes_on_to_fit_and_page(on_a_gaussian, tmp_path):
    assert "Before the last step these are the chains" in on_a_gaussian.report(tmp_path).read_text(encoding="utf-8")
    further = sk.fit(jr.key(1), badly_scaled, sk.svgd(optimiser=1e-9), on_a_gaussian, num_steps=2)
    np.testing.assert_allclose(further.points, on_a_gaussian.points, atol=1e-6)


def test_the_history_holds_the_chains_and_at_its_end_the_particles(on_a_gaussian):
    history = on_a_gaussian.history
    assert history.step[-1] == on_a_gaussian.num_steps
    assert 30 < len(history.step) <= 60
    assert history.particles.shape == (len(history.step), 100, 2)
    assert history.particles.dtype == on_a_gaussian.particles.dtype
    np.testing.assert_array_equal(history.particles[-1], on_a_gaussian.particles)
    clouds = np.asarray(history.particles)[len(history.step) // 2 : -1]  # 100 draws each: their means within 5 errors
    assert np.abs((clouds.mean(axis=1) - MEAN) / SDS).max() < 0.5


def test_the_page_speaks_of_chains_not_of_particles_that_move(on_a_gaussian, tmp_path):
    page = on_a_gaussian.report(tmp_path).read_text(encoding="utf-8")
    assert '"trail":0' in page
    assert "Mean gradient" in page
    assert "Leapfrog step" in page
    assert "the nearest Gaussian, Hamiltonian chains from it" in page
    assert "as the particles come to rest" not in page


def test_more_particles_than_chains_have_a_history_too(quickly):
    result = sk.sample(jr.key(0), badly_scaled, np.zeros(2), 250)
    clouds = result.history.particles
    assert clouds.shape[1:] == (250, 2)
    np.testing.assert_array_equal(clouds[-1], result.particles)
    assert len(np.unique(clouds[-2], axis=0)) > 200  # three transitions in a row: some chains stay


def test_some_of_the_particles_claim_no_quality_of_all(on_a_gaussian):
    some = on_a_gaussian.resample(jr.key(1), 5)
    assert some.quality is None
    np.testing.assert_array_equal(some.history.particles[-1], some.particles)
    both = sk.combine([on_a_gaussian, on_a_gaussian])
    assert type(both) is sk.Result
    assert len(both.points) == 200


def test_the_same_key_gives_the_same_particles_and_another_gives_others(on_a_gaussian, quickly):
    again = sk.sample(jr.key(0), badly_scaled, np.zeros(2))
    np.testing.assert_array_equal(again.points, on_a_gaussian.points)
    other = sk.sample(jr.key(1), badly_scaled, np.zeros(2))
    assert np.abs(other.points - on_a_gaussian.points).max() > 0


def test_constraints_data_and_pytrees_come_back_in_their_own_coordinates(quickly, tmp_path):
    seen = np.full(9, 2.0)

    def log_density(parameters, data):  # Gamma(1 + 9 · 2, 1 + 9) for a Poisson rate
        return jnp.sum(data * jnp.log(parameters["rate"]) - parameters["rate"]) - parameters["rate"]

    target = sk.LogDensity(log_density, support={"rate": sk.positive})
    result = sk.sample(jr.key(0), target, {"rate": 30.0}, 50, seen)
    rates = np.asarray(result.particles["rate"])
    assert rates.shape == (50,)
    assert result.history.particles["rate"].shape == (len(result.history.step), 50)
    np.testing.assert_array_equal(result.history.particles["rate"][-1], rates)
    assert result.history.particles["rate"].min() > 0
    assert "It needs the data" in result.report(tmp_path).read_text(encoding="utf-8")
    assert abs(rates.mean() - 1.9) < 0.05 * 1.9**0.5
    assert abs(rates.std() / (19**0.5 / 10) - 1) < 0.05
    assert result.warnings == ()


def test_a_numpyro_model_needs_no_start_and_its_minibatches_are_refused(quickly):
    numpyro = pytest.importorskip("numpyro")

    def model():
        rate = numpyro.sample("rate", numpyro.distributions.Gamma(3.0, 1.0))
        with numpyro.plate("data", 4):
            numpyro.sample("y", numpyro.distributions.Poisson(rate), obs=jnp.full(4, 2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = sk.interop.numpyro.from_model(model)
        rates = np.asarray(sk.sample(jr.key(0), target, num_particles=50).particles["rate"])
        assert abs(rates.mean() - 11 / 5) < 0.05  # Gamma(3 + 8, 1 + 4)
        assert abs(rates.std() / (11**0.5 / 5) - 1) < 0.05

        def in_parts():
            rate = numpyro.sample("rate", numpyro.distributions.Gamma(3.0, 1.0))
            with numpyro.plate("data", 4, subsample_size=2) as rows:
                numpyro.sample("y", numpyro.distributions.Poisson(rate), obs=jnp.full(4, 2)[rows])

        with pytest.raises(ValueError, match=r"`target` draws minibatches.*leave `subsample_size` out"):
            sk.sample(jr.key(0), sk.interop.numpyro.from_model(in_parts))


def test_a_density_with_an_edge_that_is_not_declared_warns_and_is_not_far_off(quickly):
    with pytest.warns(sk.SteinWarning, match="the density has an edge"):
        result = sk.sample(jr.key(0), lambda x: jnp.where(x[0] > 0, -0.5 * x[0] ** 2, -jnp.inf), np.ones(1))
    points = np.asarray(result.points)
    assert (points > 0).all()
    assert abs(points.mean() - (2 / np.pi) ** 0.5) < 0.1
    assert abs(points.std() - (1 - 2 / np.pi) ** 0.5) < 0.1


@pytest.mark.thorough
def test_a_narrow_direction_is_kept_and_reverse_mode_alone_is_enough(quickly):
    @jax.custom_vjp
    def log_density(x):
        return -0.5 * (x[0] ** 2 + x[1] ** 2 + ((x[2] - x[0] - x[1]) / 1e-3) ** 2)

    def forward(x):
        return log_density(x), x

    def backward(x, g):
        off = (x[2] - x[0] - x[1]) / 1e-6
        return (g * jnp.stack([off - x[0], off - x[1], -off]),)

    log_density.defvjp(forward, backward)
    points = np.asarray(sk.sample(jr.key(0), log_density, np.zeros(3)).points)
    assert abs((points[:, 2] - points[:, 0] - points[:, 1]).std() / 1e-3 - 1) < 0.05
    np.testing.assert_allclose(points.std(0), [1, 1, 2**0.5], rtol=0.05)  # what `sample` calls known: 0.03, and some


def test_along_a_sharp_bend_errors_are_as_stated_and_particles_stand_on_the_ridge(quickly, tmp_path):
    def banana(x):
        return -(x[0] ** 2) / 8 - (x[1] - x[0] ** 2 / 4) ** 2 / 0.18

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.SteinWarning)
        results = [
            sk.sample(jr.key(seed), banana, np.zeros(2)) for seed in (0, 11)
        ]  # of 16 these two had the least spread
    for result in results:
        assert result.quality is not None
        ratios = result.points.std(axis=0) / np.array([2.0, (2 + 0.09) ** 0.5])  # Var(x₀²/4) = 2 · 4² / 16
        assert np.all(np.abs(ratios - 1) < 4 * np.maximum(result.quality.sd_errors, 0.015)), (ratios, result.quality)
        assert np.min(jax.vmap(banana)(result.points)) > -9  # of 10,000 draws one has less
        assert any("means and spreads are not settled" in text for text in result.warnings)
        assert result.status is sk.Status.FINISHED
    assert 'class="status warn"' in results[0].report(tmp_path).read_text(encoding="utf-8")


def test_a_funnel_warns(quickly):
    with pytest.warns(sk.SteinWarning):
        result = sk.sample(jr.key(0), funnel, np.zeros(4))
    assert result.status is sk.Status.FINISHED
    assert any("funnel" in text for text in result.warnings)


@pytest.mark.thorough
def test_four_separate_modes_have_their_shares_though_one_start_was_given(quickly):
    centres = jnp.array([[-4.0, -4.0], [4.0, -4.0], [-4.0, 4.0], [4.0, 4.0]])
    shares = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))

    def log_density(x):
        return jax.nn.logsumexp(shares - 0.5 * jnp.sum((x[None] - centres) ** 2, axis=1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.SteinWarning)
        points = np.asarray(sk.sample(jr.key(0), log_density, np.array([0.1, -0.2])).points)
    quadrants = np.array([np.mean((points * np.sign(centre) > 0).all(axis=1)) for centre in np.asarray(centres)])
    np.testing.assert_allclose(
        quadrants, [0.4, 0.3, 0.2, 0.1], atol=0.08
    )  # a hundred particles: 0.01 each, and chains that jump now and then


@pytest.mark.parametrize(
    ("function", "culprit"),
    [(lambda x: -0.5 * x[0] ** 2 + 0 * x[1], r"x\[1\]"), (lambda x: -0.5 * x[1] ** 2 + x[0], r"x\[0\]")],
    ids=["flat", "growing"],
)
def test_an_improper_density_is_divergence_and_names_the_coordinate(function, culprit, quickly):
    with pytest.raises(sk.DivergedError, match=f"came to no end.*farthest in '{culprit}'.*proper prior"):
        sk.sample(jr.key(0), function, np.zeros(2))
    result = sk.sample(jr.key(0), function, np.zeros(2), throw=False)
    assert result.status is sk.Status.DIVERGED
    assert result.quality is None


def test_bad_input_is_told_by_name():
    with pytest.raises(ValueError, match=r"`start` is missing: give one particle's parameters"):
        sk.sample(jr.key(0), badly_scaled)
    with pytest.raises(ValueError, match=r"`num_particles` must be a whole number of at least 1, got 0"):
        sk.sample(jr.key(0), badly_scaled, np.zeros(2), 0)
    with pytest.raises(ValueError, match=r"`start` must hold numbers, one particle's parameters, got '0'"):
        sk.sample(jr.key(0), badly_scaled, "0")
    with pytest.raises(
        ValueError, match=r"`target` must take `start`, shape \(3,\); it raised .*other names or shapes"
    ):
        sk.sample(jr.key(0), lambda x: jnp.sum(x - jnp.ones(2)), np.zeros(3))
    with pytest.raises(ValueError, match=r"`start` must lie where the log density and its gradient are finite"):
        sk.sample(jr.key(0), lambda x: jnp.log(x[0]) - x[0], np.array([-1.0]))
    with pytest.raises(ValueError, match=r"`data` is missing: a `Posterior` needs"):
        sk.sample(jr.key(0), sk.Posterior(lambda x: 0.0, lambda x, row: row - x, 3), np.zeros(()))


def test_switches_of_precision_are_left_alone_and_double_precision_is_used(quickly):
    jax.config.update("jax_enable_x64", False)
    try:
        seen = []

        def log_density(x):
            seen.append(x.dtype)
            index = WHOLE  # JAX remembers these by precision: see `forget_precision`
            return -0.5 * jnp.sum((x[index] - 1e6) ** 2)

        jax.eval_shape(jax.grad(log_density), jax.ShapeDtypeStruct((2,), jnp.float32))  # met in single precision first
        result = sk.sample(jr.key(0), log_density, np.zeros(2))
        assert not jax.config.jax_enable_x64
        assert result.settings["precision"] == "float64"
        assert jnp.float64 in seen
        assert result.points.dtype == jnp.float32
        assert result.scores().dtype == jnp.float32
        assert abs(float(result.points.mean()) - 1e6) < 0.2
    finally:
        jax.config.update("jax_enable_x64", True)


WHOLE = np.array([0, 1])


# Rule by rule.


def test_the_nearest_gaussian_of_a_gaussian_is_itself():
    noise = even_noise(jr.key(0), 100, 2, jnp.float64)
    found = nearest_gaussian(bound(badly_scaled), jnp.zeros(2), noise)
    assert bool(found.settled)
    np.testing.assert_allclose(found.mean, MEAN, rtol=1e-6)
    np.testing.assert_allclose(found.precision, np.diag(SDS**-2.0), rtol=1e-6, atol=1e-6)


def test_the_nearest_gaussian_satisfies_steins_identities_over_its_own_cloud():
    def skewed(x):
        return jnp.sum(3 * x - jnp.exp(x)) - 0.1 * x[0] * x[1]

    target, noise = bound(skewed), even_noise(jr.key(0), 100, 2, jnp.float64)
    found = nearest_gaussian(target, jnp.array([5.0, -5.0]), noise)
    points = found.cloud(noise)
    scores = target.scores(points)
    sds = np.sqrt(np.diagonal(np.linalg.inv(found.precision)))
    np.testing.assert_allclose(jnp.mean(scores, axis=0) * sds, 0, atol=0.05)  # settled to a hundredth of a nat
    curvature = -jnp.mean(jax.vmap(jax.hessian(skewed))(points), axis=0)
    np.testing.assert_allclose(
        curvature * np.outer(sds, sds), found.precision * np.outer(sds, sds), atol=0.1
    )  # likewise


def test_many_dimensions_take_the_diagonal_alone():
    d = 201
    scales = jnp.linspace(0.5, 2, d)
    target = bound(lambda x: -0.5 * jnp.sum((x / scales) ** 2), d)
    found = nearest_gaussian(target, jnp.ones(d), even_noise(jr.key(0), 100, d, jnp.float64))
    assert found.precision.shape == (d,)
    np.testing.assert_allclose(found.precision, scales**-2, rtol=1e-6)


def test_even_noise_has_exact_moments_and_in_too_many_dimensions_no_direction_twice():
    noise = even_noise(jr.key(0), 50, 3, jnp.float64)
    np.testing.assert_allclose(noise.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(noise.T @ noise / 50, np.eye(3), atol=1e-12)
    values = np.linalg.eigvalsh(np.cov(even_noise(jr.key(0), 10, 20, jnp.float64).T, ddof=0))
    np.testing.assert_allclose(sorted(values)[-9:], 1, atol=1e-10)
    np.testing.assert_allclose(sorted(values)[:-9], 0, atol=1e-10)


@pytest.fixture(scope="module")
def chains():
    """Chains on a skewed target of two dimensions whose moments are known: log of Gamma(3, 1) in each."""

    def log_density(x):
        return jnp.sum(3 * x - jnp.exp(x))

    target = bound(log_density)
    start = jnp.diag(jnp.full(2, 2.5))
    sampler = sk.Hamiltonian(metric_of(start), jnp.asarray(0.2))
    state = sampler.init(target, jr.normal(jr.key(0), (100, 2)))
    with compiled_quickly():
        state, step, draws = one_round(jr.key(1), target, sampler, state, None, jnp.ones(()))
        metric = measured_metric(draws, start)
        _, after, draws = one_round(jr.key(2), target, sk.Hamiltonian(metric, step), state, None, jnp.zeros(()))
    assert float(after) == pytest.approx(float(step))  # a rate of 0 leaves it
    return draws, metric, step


DIGAMMA_3, TRIGAMMA_3 = 0.9227843350984671, 0.3949340668482264


def test_chains_have_the_moments_of_the_target_and_a_step_size_for_it(chains):
    draws, metric, step = chains
    assert 0.3 < float(step) < 2
    assert 0.65 < float(draws.acceptance.mean()) < 0.95
    points = np.asarray(draws.points).reshape(-1, 2)
    # Standard errors of 5,000 draws that are worth a half: 0.013 in the mean, 0.04 of the variance; four of them.
    np.testing.assert_allclose(points.mean(0), DIGAMMA_3, atol=0.05)
    np.testing.assert_allclose(points.var(0), TRIGAMMA_3, rtol=0.15)
    np.testing.assert_allclose(
        metric.multiply(jnp.array([1.0, 0.0]))[0], 1 / TRIGAMMA_3, rtol=0.2
    )  # half as many draws


def test_steins_identity_takes_noise_out_of_moments(chains):
    draws, metric, _ = chains
    found = moments_by_stein(draws.points, draws.scores, metric)
    plain = np.std(np.asarray(draws.points).mean(0), axis=0, ddof=1) / 10
    assert (np.asarray(found.mean_error) < 0.7 * plain).all()
    mean = found.centre + metric.unwhiten(found.mean)
    assert (np.abs(mean - DIGAMMA_3) < 5 * found.mean_error).all()
    root = np.asarray(metric.inverse_root)
    np.testing.assert_allclose(
        np.diagonal(root @ found.covariance @ root.T), TRIGAMMA_3, rtol=0.1
    )  # as above, less noise
    assert float(found.identity_error) < 5


def test_steins_identity_makes_moments_of_a_gaussian_exact_and_narrow_directions_too():
    root = np.array([[2.0, 0.0, 0.0], [1.5, 0.5, 0.0], [3.5, 0.5, 1e-4]])  # the last is the sum of the others, nearly
    points = jr.normal(jr.key(0), (20, 30, 3)) @ root.T + 5
    precision = np.linalg.inv(root @ root.T)
    precision = (precision + precision.T) / 2
    metric = DenseMetric.of(jnp.asarray(precision))
    found = moments_by_stein(points, -(points - 5) @ precision, metric)
    np.testing.assert_allclose(found.centre + metric.unwhiten(found.mean), 5, atol=1e-5)
    np.testing.assert_allclose(found.covariance, np.eye(3), atol=1e-5)


def test_a_correction_that_is_no_noise_is_refused_and_an_edge_is_seen():
    points = jnp.abs(jr.normal(jr.key(0), (50, 100, 1)))  # half of a Gaussian: E[s] is not 0
    found = moments_by_stein(points, -points, metric_of(jnp.ones((1, 1))))
    # Four standard errors of 5,000 draws: 0.03 in the mean, 0.03 in the variance.
    np.testing.assert_allclose(found.centre + found.mean, (2 / np.pi) ** 0.5, atol=0.03)
    np.testing.assert_allclose(found.covariance, 1 - 2 / np.pi, atol=0.03)
    assert float(found.identity_error) > 20


@pytest.mark.thorough
def test_a_jump_leaves_the_target_as_it_is(quickly):
    target = bound(lambda x: jnp.sum(3 * x - jnp.exp(x)))
    exact = jnp.log(jr.gamma(jr.key(0), 3.0, (4000, 2)))
    sampler = sk.Hamiltonian(metric_of(jnp.full(2, 2.5)), 1e-6, 1)  # so short that jumps alone move the chains
    state = sampler.init(target, exact)
    for turn in range(5):
        state, _ = eqx.filter_jit(sampler.step)(jr.key(turn), state, target)
    moved = np.mean(np.any(np.abs(state.points - exact) > 1e-3, axis=1))
    assert moved > 0.3
    points = np.asarray(state.points)  # 4,000 draws: five standard errors of the mean, three of the variance
    np.testing.assert_allclose(points.mean(0), DIGAMMA_3, atol=0.05)
    np.testing.assert_allclose(points.var(0), TRIGAMMA_3, rtol=0.1)


def test_chains_that_have_settled_are_told_from_those_that_drift_or_stay_apart():
    still = jr.normal(jr.key(0), (200, 100, 2))
    found = mixing(np.asarray(still))
    assert settled(found)
    np.testing.assert_allclose(found.mean_error, 1 / np.sqrt(20_000), rtol=0.4)  # from 100 chains: 7 percent
    np.testing.assert_allclose(found.r_hat, 1, atol=0.01)  # √(1 + 1/200), and noise
    moving = still + jnp.linspace(0, 1, 200)[:, None, None] * jnp.array([0.0, 1.0])[None, None]
    assert drifting(mixing(np.asarray(moving)))
    apart = still + 5.0 * jnp.asarray(np.arange(100) % 2, float)[None, :, None]
    assert not settled(mixing(np.asarray(apart)))
    assert mixing(np.asarray(apart)).r_hat.min() > 2


def test_placed_particles_are_nearer_to_the_draws_than_draws_are():
    draws = jr.normal(jr.key(0), (3000, 2))
    particles = placed(jr.key(1), draws, 100)
    ours, theirs = (along_directions(jr.key(2), some, draws).mean() for some in (particles, draws[:100]))
    assert float(ours) < 0.6 * float(theirs)


@pytest.mark.parametrize("n", [100, 21, 10])
def test_the_affine_map_gives_the_moments_asked_for(n):
    root = np.tril(np.full((20, 20), 0.2)) + np.eye(20)
    mean, covariance = jnp.arange(20.0), jnp.asarray(root @ root.T)
    moved = with_moments(jr.normal(jr.key(0), (n, 20)), mean, covariance)
    np.testing.assert_allclose(moved.mean(0), mean, atol=1e-10)
    if n > 20:
        np.testing.assert_allclose(np.cov(moved.T, ddof=0), covariance, atol=1e-8)
    else:  # too few for all correlations
        np.testing.assert_allclose(moved.var(0), np.diagonal(covariance), rtol=1e-8)


def test_particles_beyond_an_edge_are_put_back():
    draws = jnp.array([[0.1, 0.0], [5.0, 5.0]])
    found = nearest_draws(jnp.array([[-1.0, 0.0], [4.0, 4.0]]), jnp.array([True, False]), draws)
    np.testing.assert_array_equal(found, [[0.1, 0.0], [4.0, 4.0]])


def test_more_particles_than_can_be_placed_are_draws():
    draws = jr.normal(jr.key(0), (2000, 2))
    particles = np.asarray(placed(jr.key(1), draws, 1500))
    assert particles.shape == (1500, 2)
    assert np.isin(particles, np.asarray(draws)).all()
