"""`sample` end to end on cheap targets: what comes back, in which form, and what is refused."""

import dataclasses
import pickle
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.default import choose

MEAN, SDS = np.array([3.0, -200.0]), np.array([1e-3, 50.0])


def badly_scaled(x):
    return -0.5 * jnp.sum(((x - MEAN) / SDS) ** 2)


# Five standard errors of 1,000 effective draws, the fewest with which chains end: of means, in standard deviations, and
# of standard deviations, relative to them.
MEAN_LIMIT, SD_LIMIT = 5 / 1000**0.5, 5 / 2000**0.5


@pytest.fixture(scope="module")
def on_a_gaussian():
    return sk.sample(jr.key(0), badly_scaled, np.zeros(2))


def test_a_badly_scaled_gaussian_is_found_from_afar_and_nothing_warns(on_a_gaussian):
    points = on_a_gaussian.particles
    assert points.shape == (100, 2)
    assert isinstance(points, np.ndarray)
    assert points.dtype == on_a_gaussian.points.dtype == np.float64
    np.testing.assert_allclose((points.mean(0) - MEAN) / SDS, 0, atol=MEAN_LIMIT)
    np.testing.assert_allclose(points.std(0), SDS, rtol=SD_LIMIT)
    assert on_a_gaussian.status is sk.Status.CONVERGED
    assert on_a_gaussian.warnings == ()


def test_what_it_says_of_itself_is_true_of_a_gaussian(on_a_gaussian):
    found = on_a_gaussian.diagnostics
    cost = found.cost
    # Stein's identity leaves no noise on a Gaussian: the stated errors are those of the choice of the particles, in
    # standard deviations of the draws, which differ from those of the target by some percent.
    points = on_a_gaussian.points
    np.testing.assert_allclose(found.mean_errors, np.abs(points.mean(0) - MEAN) / SDS, rtol=0.1, atol=1e-5)
    np.testing.assert_allclose(found.sd_errors, np.abs(points.std(0) / SDS - 1), rtol=0.1, atol=1e-5)
    assert found.r_hat.max() < 1.02
    assert abs(found.stein_ratio - 1) < 0.1
    assert found.distance < 0.15
    assert cost.sequential < 1000
    assert cost.in_gradients(2) == cost.values + cost.gradients + 2 * cost.hessians
    assert "R-hat" in on_a_gaussian.summary()


def test_the_result_goes_on_to_fit_and_page(on_a_gaussian, tmp_path):
    assert "Before the last step these are the chains" in on_a_gaussian.report(tmp_path).read_text(encoding="utf-8")
    further = sk.fit(jr.key(1), badly_scaled, sk.svgd(optimizer=1e-9), on_a_gaussian, num_steps=2)
    np.testing.assert_allclose(further.points, on_a_gaussian.points, atol=1e-6)
    assert further.num_steps == 2  # transitions of chains are no steps: schedules of `fit` begin at 0
    assert sk.combine([on_a_gaussian, on_a_gaussian]).num_steps == 0


def test_the_history_holds_the_chains_and_at_its_end_the_particles(on_a_gaussian):
    history = on_a_gaussian.history
    assert history.step[-1] == on_a_gaussian.num_steps
    assert 30 < len(history.step) <= 60
    assert history.particles.shape == (len(history.step), 100, 2)
    assert history.particles.dtype == on_a_gaussian.particles.dtype
    np.testing.assert_array_equal(history.particles[-1], on_a_gaussian.particles)
    assert history.velocity_norm.shape == history.step_size.shape == history.step.shape
    clouds = np.asarray(history.particles)[len(history.step) // 2 : -1]  # 100 draws each: their means within 5 errors
    assert np.abs((clouds.mean(axis=1) - MEAN) / SDS).max() < 0.5


def test_the_page_speaks_of_chains_not_of_particles_that_move(on_a_gaussian, tmp_path):
    page = on_a_gaussian.report(tmp_path).read_text(encoding="utf-8")
    assert '"trail":0' in page
    assert "leapfrog step" in page
    assert "the nearest Gaussian, Hamiltonian chains from it" in page
    assert "as the particles come to rest" not in page


@pytest.mark.thorough
def test_more_particles_than_chains_have_a_history_too():
    result = sk.sample(jr.key(0), badly_scaled, np.zeros(2), 250)
    clouds = result.history.particles
    assert clouds.shape[1:] == (250, 2)
    np.testing.assert_array_equal(clouds[-1], result.particles)
    assert len(np.unique(clouds[-2], axis=0)) > 200  # three transitions in a row: some chains stay


def test_a_table_is_computed_in_double_precision_whatever_the_particles_are_held_in(on_a_gaussian):
    values = np.float32(1.7e9) + np.float32(128) * np.arange(100, dtype=np.float32)[:, None]
    held = dataclasses.replace(on_a_gaussian, particles=values, points=values)
    mean, sd = held.summary().splitlines()[1].split()[1:3]
    assert float(mean) == float(f"{values.astype(np.float64).mean():.4g}")
    assert float(sd) == float(f"{values.astype(np.float64).std():.4g}")


def test_some_of_the_particles_claim_no_numbers_of_all(on_a_gaussian):
    some = on_a_gaussian.resample(jr.key(1), 5)
    assert not len(some.diagnostics.mean_errors)
    np.testing.assert_array_equal(some.history.particles[-1], some.particles)
    both = sk.combine([on_a_gaussian, on_a_gaussian])
    assert len(both.points) == 200


def test_the_same_key_gives_the_same_particles_and_another_gives_others(on_a_gaussian):
    again = sk.sample(jr.key(0), badly_scaled, np.zeros(2), np.int64(100))
    np.testing.assert_array_equal(again.points, on_a_gaussian.points)
    other = sk.sample(jr.key(1), badly_scaled, np.zeros(2))
    assert np.abs(other.points - on_a_gaussian.points).max() > 0


@pytest.mark.thorough
def test_constraints_data_and_pytrees_come_back_in_their_own_coordinates(tmp_path):
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
    assert abs(rates.mean() - 1.9) < MEAN_LIMIT * 19**0.5 / 10
    assert abs(rates.std() / (19**0.5 / 10) - 1) < SD_LIMIT
    assert result.warnings == ()


@pytest.mark.thorough
def test_a_numpyro_model_needs_no_start():
    numpyro = pytest.importorskip("numpyro")

    def model():
        rate = numpyro.sample("rate", numpyro.distributions.Gamma(3.0, 1.0))
        with numpyro.plate("data", 4):
            numpyro.sample("y", numpyro.distributions.Poisson(rate), obs=jnp.full(4, 2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = sk.sample(jr.key(0), model, num_particles=50).particles["rate"]  # as `from_model(model)`
    assert abs(rates.mean() - 11 / 5) < MEAN_LIMIT * 11**0.5 / 5  # Gamma(3 + 8, 1 + 4)
    assert abs(rates.std() / (11**0.5 / 5) - 1) < SD_LIMIT


def test_a_numpyro_model_with_arguments_is_refused_with_the_way_out():
    numpyro = pytest.importorskip("numpyro")

    def with_data(y):
        mean = numpyro.sample("x", numpyro.distributions.Normal())
        numpyro.sample("y", numpyro.distributions.Normal(mean, 1), obs=y)

    with pytest.raises(ValueError, match=r"`start` is missing.*interop.numpyro.from_model\(model, \.\.\.\)"):
        sk.sample(jr.key(0), with_data)
    with pytest.raises(ValueError, match=r"AssertionError.*interop.numpyro.from_model\(model, \.\.\.\)"):
        sk.sample(jr.key(0), with_data, 1.0)


def test_an_assertion_in_the_function_is_told_with_its_words():
    def two_only(x):
        assert x.shape == (2,), "two numbers"
        return -0.5 * jnp.sum(x**2)

    with pytest.raises(ValueError, match="raised AssertionError: two numbers"):
        sk.sample(jr.key(0), two_only, jnp.zeros(3))


@pytest.mark.thorough
@pytest.mark.parametrize("method", [sk.sample, sk.fit])
def test_subsampled_plates_run_in_full_where_all_data_are_needed(method):
    numpyro = pytest.importorskip("numpyro")
    seen = jnp.array([0, 1, 2, 9])

    def in_parts():
        rate = numpyro.sample("rate", numpyro.distributions.Gamma(3.0, 1.0))
        with numpyro.plate("data", 4, subsample_size=2) as rows:
            numpyro.sample("y", numpyro.distributions.Poisson(rate), obs=seen[rows])

    with jax.numpy_dtype_promotion("standard"):
        rates = method(jr.key(0), in_parts).particles["rate"]
    assert abs(rates.mean() - 15 / 5) < MEAN_LIMIT * 15**0.5 / 5  # Gamma(3 + 12, 1 + 4)
    assert abs(rates.std() / (15**0.5 / 5) - 1) < SD_LIMIT


def test_a_sampler_of_the_callers_keeps_the_minibatches_of_a_model():
    numpyro = pytest.importorskip("numpyro")

    def in_parts():
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0.0, 1.0))
        with numpyro.plate("data", 4, subsample_size=2) as rows:
            numpyro.sample("y", numpyro.distributions.Normal(mean, 1.0), obs=jnp.zeros(4)[rows])

    target = sk.interop.numpyro.from_model(in_parts)
    choice = choose(jr.key(0), target, sk.svgd(), None, None, None, 10, 1, None)
    assert choice.target is target
    assert choose(jr.key(0), target, None, None, None, None, 10, 1, None).target.plates == ()


@pytest.mark.thorough
def test_a_narrow_direction_is_kept_and_reverse_mode_alone_is_enough():
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
    assert abs((points[:, 2] - points[:, 0] - points[:, 1]).std() / 1e-3 - 1) < SD_LIMIT
    np.testing.assert_allclose(points.std(0), [1, 1, 2**0.5], rtol=SD_LIMIT)


def test_bad_input_is_told_by_name():
    with pytest.raises(ValueError, match=r"`start` is missing: give one particle's parameters"):
        sk.sample(jr.key(0), badly_scaled)
    with pytest.raises(ValueError, match=r"`num_particles` must be a whole number of at least 1, got 0"):
        sk.sample(jr.key(0), badly_scaled, np.zeros(2), 0)
    with pytest.raises(ValueError, match=r"`num_particles` must be at most 1,000,000, got 2000000. Take fewer"):
        sk.sample(jr.key(0), badly_scaled, np.zeros(2), 2_000_000)
    with pytest.raises(ValueError, match=r"`start` must be an array of numbers, got '0' of type str"):
        sk.sample(jr.key(0), badly_scaled, "0")
    with pytest.raises(
        ValueError, match=r"`target` must take `start`, shape \(3,\); it raised .*other names or shapes"
    ):
        sk.sample(jr.key(0), lambda x: jnp.sum(x - jnp.ones(2)), np.zeros(3))
    with pytest.raises(ValueError, match=r"`start` must lie where the log density and its gradient are finite"):
        sk.sample(jr.key(0), lambda x: jnp.log(x[0]) - x[0], np.array([-1.0]))
    with pytest.raises(ValueError, match=r"`data` is missing: a `Posterior` needs"):
        sk.sample(jr.key(0), sk.Posterior(lambda x: 0.0, lambda x, row: row - x, 3), np.zeros(()))


def test_in_single_precision_a_badly_scaled_gaussian_is_as_good_and_nothing_warns():
    seen = set()
    mean, sds = MEAN.copy(), SDS.copy()  # JAX caches its version of an array by identity, in double precision elsewhere

    def log_density(x):
        seen.add(x.dtype.name)
        return -0.5 * jnp.sum(((x - mean) / sds) ** 2)

    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        result = sk.sample(jr.key(0), log_density, np.zeros(2))
    assert seen == {result.settings["precision"]} == {"float32"}
    held = result.points, result.particles, result.history.particles
    assert {array.dtype.name for array in held} == {"float32"}
    points = result.points.astype(np.float64)
    np.testing.assert_allclose((points.mean(0) - MEAN) / SDS, 0, atol=MEAN_LIMIT)
    np.testing.assert_allclose(points.std(0), SDS, rtol=SD_LIMIT)
    assert result.status is sk.Status.CONVERGED
    assert result.warnings == ()


@pytest.mark.parametrize("function", ["x - 1e6", "1e8 - x²"])
def test_what_single_precision_cannot_hold_is_told(function):
    def log_density(x):
        return -0.5 * jnp.sum((x - 1e6) ** 2) if function == "x - 1e6" else 1e8 - 0.5 * jnp.sum(x**2)

    words = "standard deviation of 'x.0.'" if function == "x - 1e6" else "the log density, near 1e.08, is rounded by 12"
    with jax.enable_x64(False), pytest.warns(sk.SteinWarning, match=f"float32 is too coarse.*{words}.*jax_enable_x64"):
        result = sk.sample(jr.key(0), log_density, np.zeros(2), 20)
    assert "float32" in [notice.code for notice in result.warnings]


@pytest.mark.every(4)
@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize("log_density", [lambda x: 0 * jnp.sum(x), jnp.sum, lambda x: jnp.sum(x**2)])
def test_in_single_precision_a_density_without_mass_is_refused_too(log_density, d):
    with jax.enable_x64(False):
        result = sk.sample(jr.key(0), log_density, np.zeros(d), throw=False)
    assert (result.status, result.message.code) == (sk.Status.DIVERGED, "improper")


def test_draws_are_those_of_the_chains_in_constrained_coordinates(tmp_path):
    target = sk.LogDensity(lambda x: 3 * jnp.log(x["rate"]) - x["rate"], support={"rate": sk.positive})  # Gamma(4, 1)
    result = sk.sample(jr.key(0), target, {"rate": 1.0}, 50)
    rates = result.draws["rate"]
    assert rates.shape == result.recorded.points.shape[:2] == result.recorded.acceptance.shape
    assert rates.shape[0] == 100
    assert isinstance(rates, np.ndarray)
    assert rates.dtype == result.particles["rate"].dtype
    assert rates.min() > 0
    # At least 1,000 effective draws: five standard errors of the mean 4, sd 2, and of a quantile with density 0.033.
    assert abs(rates.mean() - 4) < 5 * 2 / 1000**0.5
    assert abs(np.quantile(rates, 0.95) - 7.754) < 5 * (0.05 * 0.95 / 1000) ** 0.5 / 0.0333
    assert len(np.unique(rates[:, -1])) > 90
    again = sk.load(result.save(tmp_path / "run.npz"))
    with pytest.raises(ValueError, match=r"unconstrained coordinates.*target=.*the run: LogDensity\(function="):
        _ = again.draws


def test_a_result_without_chains_names_the_way_to_draws(on_a_gaussian):
    fitted = sk.fit(jr.key(0), badly_scaled, sk.svgd(optimizer=1e-9), on_a_gaussian, num_steps=1)
    for result in (fitted, sk.combine([on_a_gaussian, on_a_gaussian])):
        with pytest.raises(ValueError, match=r"has no draws.*Take `result.particles`, or call `sample`"):
            _ = result.draws
    np.testing.assert_array_equal(on_a_gaussian.resample(jr.key(0), 5).draws, on_a_gaussian.draws)


def test_draws_survive_files_and_pickles(on_a_gaussian, tmp_path):
    path = on_a_gaussian.save(tmp_path / "run.npz")
    again = sk.load(path, target=badly_scaled)
    np.testing.assert_array_equal(again.draws, on_a_gaussian.draws)
    np.testing.assert_array_equal(again.recorded.log_densities, on_a_gaussian.recorded.log_densities)
    np.testing.assert_array_equal(sk.load(path).draws, on_a_gaussian.draws)
    with jax.enable_x64(False):
        assert sk.load(path).draws.dtype == np.float32
    copied = pickle.loads(pickle.dumps(on_a_gaussian))
    np.testing.assert_array_equal(copied.draws, on_a_gaussian.draws)
    assert path.stat().st_size < 2 * 8 * on_a_gaussian.draws.size + 500_000  # the history has 60 × 100 points more


def horseshoe():
    """Eight coefficients, three of them not 0, each a product of two scales and a normal variable."""
    features = np.random.default_rng(0).standard_normal((60, 8))
    seen = features @ np.array([3.0, -2, 1, 0, 0, 0, 0, 0]) + np.random.default_rng(1).standard_normal(60)

    def log_density(p):
        slopes = p["lam"] * p["tau"] * p["z"]
        scales = -jnp.sum(jnp.log1p(p["lam"] ** 2)) - jnp.log1p(p["tau"] ** 2) - 0.5 * jnp.sum(p["z"] ** 2)
        return scales - 0.5 * jnp.sum((seen - features @ slopes) ** 2)

    def functions(p):
        slopes = p["lam"] * p["tau"] * p["z"]
        return jnp.concatenate([slopes, jnp.sum(slopes)[None], jnp.log(p["lam"])])

    target = sk.LogDensity(log_density, support={"lam": sk.positive, "tau": sk.positive})
    return target, {"lam": jnp.ones(8), "tau": jnp.ones(()), "z": jnp.zeros(8)}, functions


def schools():
    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_density(p):
        prior = -0.5 * (p["centre"] / 5) ** 2 - jnp.log1p((p["spread"] / 5) ** 2) - 0.5 * jnp.sum(p["z"] ** 2)
        return prior - 0.5 * jnp.sum(((effects - p["centre"] - p["spread"] * p["z"]) / errors) ** 2)

    def functions(p):
        school = p["centre"] + p["spread"] * p["z"]
        return jnp.concatenate([school, jnp.max(school)[None], jnp.log(p["spread"])[None]])

    target = sk.LogDensity(log_density, support={"spread": sk.positive})
    return target, {"centre": jnp.zeros(()), "spread": jnp.ones(()), "z": jnp.zeros(8)}, functions


def simplex():
    counts = np.array([4.0, 3, 2, 2, 1, 0])

    def functions(p):
        return jnp.concatenate([p, jnp.log(p[:-1] / p[-1]), -jnp.sum(p * jnp.log(p))[None]])

    return (
        sk.LogDensity(lambda p: jnp.sum((counts - 0.5) * jnp.log(p)), support=sk.simplex),
        jnp.full(6, 1 / 6),
        functions,
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
@pytest.mark.parametrize("model", [horseshoe, schools, simplex])
@pytest.mark.parametrize("num_particles", [20, 100, 1000])
def test_functions_of_the_parameters_are_distributed_as_over_the_draws(model, num_particles):
    target, start, functions = model()
    result = sk.sample(jr.key(0), target, start, num_particles)
    draws = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), result.draws)
    ours, all_draws = (np.asarray(jax.vmap(functions)(x)) for x in (result.particles, draws))
    centered = all_draws - all_draws.mean(axis=0)
    sd = all_draws.std(axis=0)
    fourth_moment = np.mean(centered**4, axis=0) / sd**4
    # Five standard errors of as many independent draws, of means, standard deviations and distribution functions.
    assert np.all(np.abs(ours.mean(axis=0) - all_draws.mean(axis=0)) < 5 * sd / num_particles**0.5)
    errors = np.sqrt((fourth_moment - 1) / (4 * num_particles))
    assert np.all(np.abs(np.log(ours.std(axis=0) / sd)) < 5 * errors)
    quantiles = np.quantile(all_draws, [0.1, 0.5, 0.9], axis=0)
    below = np.mean(ours[None] < quantiles[:, None], axis=1)
    assert np.all(np.abs(below - np.array([[0.1], [0.5], [0.9]])) < 5 * 0.5 / num_particles**0.5)
