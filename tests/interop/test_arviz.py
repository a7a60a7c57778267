"""Results in ArviZ: the groups hold the particles' numbers, and ArviZ's own summaries and plots take them."""

import pickle
import re
import sys
import warnings
from functools import partial

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import steinkern as sk
from steinkern.core.extras import install_command

pytest.importorskip("arviz", reason="needs ArviZ: pip install 'steinkern[arviz]'")

import matplotlib as mpl

mpl.use("Agg")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ 0.23 announces its successor on import
    import arviz

DATA = jnp.array([[0.5, 1.0], [1.5, 0.0]])

# ArviZ and what it plots with warn of their own future, and of the single chain.
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]


def log_likelihood(parameters, row):
    return -0.5 * jnp.sum((row - parameters["mean"]) ** 2) / parameters["scale"] ** 2 - 2 * jnp.log(parameters["scale"])


def log_prior(parameters):
    return -0.5 * jnp.sum(parameters["mean"] ** 2) - parameters["scale"]


@pytest.fixture(scope="module")
def result():
    target = sk.Posterior(log_prior, log_likelihood, 2, support={"scale": sk.positive})
    start = {"mean": jr.normal(jr.key(0), (30, 2)), "scale": jnp.linspace(0.5, 1.5, 30)}
    return sk.fit(jr.key(0), target, sk.svgd(), start, DATA, num_steps=20)


@pytest.fixture(scope="module")
def data(result):
    draws = {"y": result.particles["mean"][:, None, :] + jnp.zeros((30, 2, 2))}
    return result.to_arviz(DATA, observed={"y": DATA}, predictive=draws)


def test_the_groups_hold_the_particles_their_density_and_what_was_observed(result, data):
    np.testing.assert_array_equal(data["posterior"]["mean"], result.particles["mean"][None])
    np.testing.assert_array_equal(data["posterior"]["scale"], result.particles["scale"][None])
    np.testing.assert_array_equal(data["observed_data"]["y"], DATA)
    assert data["posterior_predictive"]["y"].shape == (1, 30, 2, 2)
    mean, scale = (np.asarray(result.particles[name]) for name in ("mean", "scale"))
    expected = stats.norm(mean[:, None], scale[:, None, None]).logpdf(np.asarray(DATA)).sum((1, 2))
    expected += -0.5 * (mean**2).sum(1) - scale + np.log(scale) + 2 * np.log(2 * np.pi)  # the Jacobian of scale, and 2π
    np.testing.assert_allclose(np.asarray(data["sample_stats"]["lp"])[0], expected, rtol=1e-10)
    attributes = data["posterior"].attrs
    assert (attributes["inference_library"], attributes["sampler"]) == ("steinkern", "SVGD")
    assert (attributes["status"], attributes["num_steps"]) == ("finished", 20)


def test_arviz_summarises_the_particles(result, data):
    table = arviz.summary(data, kind="stats", round_to="none")
    assert list(table.index) == ["mean[0]", "mean[1]", "scale"]
    np.testing.assert_allclose(table["mean"].astype(float)["scale"], result.particles["scale"].mean(), rtol=1e-3)


@pytest.mark.parametrize("plot", ["plot_forest", "plot_posterior plot_dist", "plot_ppc plot_ppc_dist", "plot_pair"])
def test_the_usual_plots_of_arviz_take_the_result(data, plot):
    function = next(getattr(arviz, name) for name in plot.split() if hasattr(arviz, name))
    assert function(data) is not None
    mpl.pyplot.close("all")


def test_models_bring_their_sites_observations_and_predictive_draws():
    numpyro = pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")

    def model(y):
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0.0, 1.0))
        numpyro.deterministic("twice", mean + mean)
        numpyro.sample("y", numpyro.distributions.Normal(mean, 1e-6), obs=y)

    target = sk.interop.numpyro.from_model(model, jnp.ones(3))
    result = sk.fit(jr.key(0), target, sk.svgd(), {"mean": jnp.arange(4.0)}, num_steps=1)
    data = result.to_arviz(key=jr.key(1))
    np.testing.assert_array_equal(data["posterior"]["twice"], 2 * result.particles["mean"][None])
    np.testing.assert_array_equal(data["observed_data"]["y"], np.ones(3))
    draws = np.asarray(data["posterior_predictive"]["y"])[0]
    np.testing.assert_allclose(draws, np.repeat(result.particles["mean"][:, None], 3, 1), atol=1e-4)


def eight_schools(errors, effects):
    import numpyro

    centre = numpyro.sample("centre", numpyro.distributions.Normal(0.0, 5.0))
    correlated = numpyro.distributions.MultivariateNormal(jnp.zeros(2), jnp.eye(2))
    numpyro.sample("pair", correlated, infer={"event_dims": ["side"]})
    with numpyro.plate("term", 3, dim=-2), numpyro.plate("school", len(errors), dim=-1):
        offset = numpyro.sample("offset", numpyro.distributions.Normal(0.0, 1.0))
        numpyro.deterministic("effect", centre + offset)
        numpyro.deterministic("powers", jnp.stack([offset, offset**2], axis=-1))
        numpyro.sample("seen", numpyro.distributions.Normal(centre + offset, errors), obs=effects)


@pytest.fixture(scope="module")
def schools():
    """A fit of `eight_schools`, with other effects for every term and school."""
    pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")
    target = sk.interop.numpyro.from_model(eight_schools, 2 * jnp.ones(4), jnp.arange(12.0).reshape(3, 4))
    start = {"centre": jnp.arange(5.0), "pair": jnp.zeros((5, 2)), "offset": jr.normal(jr.key(0), (5, 3, 4))}
    return sk.fit(jr.key(0), target, sk.ensemble(), start, num_steps=1)


def test_axes_have_the_names_of_a_models_plates(schools):
    data = schools.to_arviz(key=jr.key(1), coords={"school": ["A", "B", "C", "D"], "side": ["left", "right"]})
    dims = {name: values.dims[2:] for name, values in data["posterior"].data_vars.items()}
    assert dims == {
        "centre": (),
        "pair": ("side",),
        "offset": ("term", "school"),
        "effect": ("term", "school"),
        "powers": ("term", "school", "powers_dim_2"),
    }
    for group in ("observed_data", "posterior_predictive", "log_likelihood"):
        assert data[group]["seen"].dims[-2:] == ("term", "school"), group
    chosen = data["posterior"]["offset"].sel(school="C", term=1)
    np.testing.assert_array_equal(chosen.values[0], schools.particles["offset"][:, 1, 2])


def test_labels_of_a_plate_that_are_too_few_are_refused_by_their_number(schools):
    with pytest.raises(ValueError, match="conflicting sizes for dimension 'school'"):
        schools.to_arviz(coords={"school": ["A", "B", "C"]})


def test_the_log_likelihood_of_a_numpyro_model_is_that_of_every_observation(schools):
    effect = np.asarray(schools.particles["centre"])[:, None, None] + np.asarray(schools.particles["offset"])
    expected = stats.norm(effect, 2.0).logpdf(np.arange(12.0).reshape(3, 4))
    np.testing.assert_allclose(schools.to_arviz()["log_likelihood"]["seen"].values[0], expected, rtol=1e-10)


def test_a_loaded_result_of_a_model_has_the_same_groups(schools, tmp_path):
    loaded = sk.load(schools.save(tmp_path / "run.result"), target=schools.target.target)
    again = pickle.loads(pickle.dumps(loaded))
    for group in ("posterior", "log_likelihood", "observed_data", "sample_stats"):
        before, after = schools.to_arviz()[group], again.to_arviz()[group]
        for name, values in before.data_vars.items():
            np.testing.assert_allclose(after[name].values, values.values, rtol=1e-12)


def test_names_and_labels_of_axes_can_be_given(result):
    names = {
        "dims": {"mean": ["column"], "y": ["row", "column"], "data": "row"},
        "coords": {"column": ["left", "right"]},
    }
    data = result.to_arviz(DATA, observed={"y": DATA}, **names)
    assert list(arviz.summary(data, kind="stats").index) == ["mean[left]", "mean[right]", "scale"]
    assert data["observed_data"]["y"].dims == ("row", "column")
    assert data["log_likelihood"]["data"].dims == ("chain", "draw", "row")
    np.testing.assert_array_equal(
        data["posterior"]["mean"].sel(column="right").values[0], result.particles["mean"][:, 1]
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"dims": {"means": ["a"]}}, "`dims` must name axes of variables among data, lp, mean, scale, got 'means'"),
        ({"dims": {"mean": ["a", "b"]}}, "mean.* more dims|'b'"),  # ArviZ's own; before 1.0 it is a KeyError
        (
            {"dims": {"mean": ["a"]}, "coords": {"a": [1, 2, 3]}},
            "conflicting sizes for dimension 'a'",
        ),
        ({"coords": {"b": [1, 2]}}, "`coords` must label existing axes, here data_dim_0, mean_dim_0, got 'b'"),
    ],
)
def test_names_of_axes_that_do_not_fit_are_refused(result, names, message):
    with pytest.raises((ValueError, KeyError), match=message):
        result.to_arviz(DATA, **names)


ROWS = np.random.default_rng(1).normal(0.7, 1.0, 40)
# Each row given the others: with the prior's, there are as many observations as rows.
ELPD = stats.norm((ROWS.sum() - ROWS) / 40, np.sqrt(1 + 1 / 40)).logpdf(ROWS).sum()


def normal_log_likelihood(mean, row, variance=1.0):
    return -0.5 * (row - mean[0]) ** 2 / variance - 0.5 * jnp.log(2 * jnp.pi * variance)


def at_the_posterior(log_likelihood, variance):
    """A result with a thousand draws of N(mean, 1/(1 + 40/variance)), the exact posterior under a N(0, 1) prior."""
    precision = 1 + len(ROWS) / variance
    draws = np.random.default_rng(0).normal(ROWS.sum() / variance / precision, precision**-0.5, (1000, 1))
    target = sk.Posterior(lambda mean: -0.5 * mean[0] ** 2, log_likelihood, len(ROWS))
    return sk.fit(jr.key(0), target, sk.ensemble(1e-9), draws, ROWS, num_steps=1)


def elpd(loo):
    return float(loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd)


@pytest.fixture(scope="module")
def good():
    return at_the_posterior(normal_log_likelihood, 1.0).to_arviz(ROWS, observed={"y": ROWS})


def test_leave_one_out_is_that_of_the_exact_posterior(good):
    # 1,000 draws know the effective number of parameters, about 1, to a few percent.
    assert elpd(arviz.loo(good)) == pytest.approx(ELPD, abs=0.2)
    assert set(good["log_likelihood"].data_vars) == {"y"}


def test_models_are_compared_by_leave_one_out(good):
    other = at_the_posterior(partial(normal_log_likelihood, variance=9.0), 9.0).to_arviz(ROWS, observed={"y": ROWS})
    assert list(arviz.compare({"wide": other, "right": good}).index) == ["right", "wide"]


def test_the_log_likelihood_can_be_left_out(result):
    assert "log_likelihood" not in str(result.to_arviz(DATA, log_likelihood=False))


def test_attributes_tell_that_particles_of_fit_are_no_chain(data):
    assert "not a Markov chain" in data["posterior"].attrs["draws"]
    table = arviz.summary(data, kind="stats")
    assert not {"ess_bulk", "r_hat", "mcse_mean"} & set(table.columns)


@pytest.fixture(scope="module")
def sampled():
    target = sk.Posterior(log_prior, log_likelihood, 2, support={"scale": sk.positive})
    return sk.sample(jr.key(0), target, {"mean": jnp.zeros(2), "scale": 1.0}, 20, data=DATA)


def test_the_groups_of_sample_hold_its_chains(sampled):
    data = sampled.to_arviz(DATA)
    posterior, stats = data["posterior"], data["sample_stats"]
    chains, draws = posterior["scale"].shape
    assert (chains, draws) == sampled.recorded.log_densities.shape
    assert chains == 100
    for name, values in sampled.draws.items():
        np.testing.assert_allclose(posterior[name].values, values, rtol=1e-6)  # separately compiled
    np.testing.assert_array_equal(stats["lp"].values, sampled.recorded.log_densities)
    np.testing.assert_array_equal(stats["acceptance_rate"].values, sampled.recorded.acceptance)
    assert data["log_likelihood"]["data"].shape == (chains, draws, 2)
    one = jnp.asarray(sampled.recorded.points[3, 5])
    np.testing.assert_allclose(stats["lp"].values[3, 5], sampled.target.log_density(one, DATA), rtol=1e-10)
    expected = [log_likelihood({name: values[3, 5] for name, values in sampled.draws.items()}, row) for row in DATA]
    np.testing.assert_allclose(data["log_likelihood"]["data"].values[3, 5], expected, rtol=1e-10)
    assert "chains of `sample`" in posterior.attrs["draws"]
    assert stats.attrs["largest_r_hat"] == sampled.diagnostics.r_hat.max()
    assert stats.attrs["largest_mean_error"] == sampled.diagnostics.mean_errors.max()


def test_arviz_states_the_mixing_of_chains(sampled):
    table = arviz.summary(sampled.to_arviz(DATA), round_to="none")
    assert (table["r_hat"].astype(float) < 1.05).all()
    draws = sampled.recorded.log_densities.size
    assert (table["ess_bulk"].astype(float) > draws / 20).all()
    assert (table["ess_tail"].astype(float) > draws / 20).all()
    # The standard error of the mean of n draws is sd / √n at the least, but for antithetic chains.
    assert (table["mcse_mean"].astype(float) < 0.1 * table["sd"].astype(float)).all()


def test_leave_one_out_takes_the_draws_of_chains():
    target = sk.Posterior(lambda mean: -0.5 * mean[0] ** 2, normal_log_likelihood, len(ROWS))
    result = sk.sample(jr.key(0), target, jnp.zeros(1), 20, data=ROWS)
    loo = arviz.loo(result.to_arviz(ROWS, observed={"y": ROWS}))
    assert elpd(loo) == pytest.approx(ELPD, abs=0.2)  # as with a thousand exact draws: see above


def test_sites_and_predictive_draws_of_a_model_are_at_the_draws_of_its_chains():
    numpyro = pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")

    def model():
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0.0, 1.0))
        numpyro.deterministic("twice", mean + mean)
        numpyro.sample("y", numpyro.distributions.Normal(mean, 0.1), obs=jnp.ones(3))

    result = sk.sample(jr.key(0), sk.interop.numpyro.from_model(model), num_particles=10)
    data = result.to_arviz(key=jr.key(1))
    np.testing.assert_array_equal(data["posterior"]["twice"].values, 2 * result.draws["mean"])
    assert data["posterior_predictive"]["y"].shape == (*result.draws["mean"].shape, 3)
    off = data["posterior_predictive"]["y"].values - result.draws["mean"][..., None]
    assert abs(off.std() - 0.1) < 0.005  # 30,000 normal numbers


def test_many_observations_export_fewer_draws(sampled, monkeypatch):
    monkeypatch.setattr("steinkern.interop.arviz._MAX_TERMS", sampled.recorded.log_densities.size)
    posterior = sampled.to_arviz(DATA)["posterior"]
    np.testing.assert_array_equal(posterior["scale"].values, sampled.draws["scale"][:, ::2])
    without = sampled.to_arviz(DATA, log_likelihood=False)["posterior"]
    np.testing.assert_array_equal(without["scale"].values, sampled.draws["scale"])


def test_predictive_draws_at_the_particles_are_a_chain_of_their_own(sampled):
    data = sampled.to_arviz(DATA, observed={"y": DATA}, predictive={"y": np.zeros((20, 2, 2))})
    assert data["posterior_predictive"]["y"].shape == (1, 20, 2, 2)
    assert data["posterior"]["scale"].shape[0] == 100


def test_data_survive_the_way_through_a_file(result, tmp_path):
    pytest.importorskip("h5netcdf", reason="needs h5netcdf: pip install 'steinkern[arviz]'")
    names = {"dims": {"mean": ["column"]}, "coords": {"column": ["left", "right"]}}
    data = result.to_arviz(DATA, observed={"y": DATA}, **names)
    data.to_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    again = arviz.from_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    groups = data.groups() if callable(data.groups) else list(data.children)  # ArviZ 0.x and 1.x
    assert set(groups) == {"posterior", "sample_stats", "observed_data", "log_likelihood"}
    for group in groups:
        for name, values in data[group].data_vars.items():
            np.testing.assert_array_equal(again[group][name].values, values.values)
            assert again[group][name].dims == values.dims
    assert list(again["posterior"]["column"].values) == ["left", "right"]
    assert again["posterior"].attrs["message"] == str(result.message)


def test_a_missing_arviz_is_named(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_command("arviz"))):
        result.to_arviz(DATA)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (None, {}, "`data` is missing"),
        (DATA, {"key": jr.key(0)}, "`key` draws from the predictive distribution of a NumPyro or PyMC model"),
        (DATA, {"predictive": {"y": DATA}}, r"leading axis of 30 particles, got shape \(2, 2\) for 'y'"),
    ],
    ids=["no data", "a key", "predictive"],
)
def test_what_does_not_fit_is_refused(data, options, message, result):
    with pytest.raises(ValueError, match=message):
        result.to_arviz(data, **options)
