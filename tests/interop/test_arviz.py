"""Results in ArviZ: the groups hold the particles' numbers, and ArviZ's own summaries and plots take them."""

import sys
import warnings

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import steinkern as sk

pytest.importorskip("arviz", reason="needs ArviZ: pip install 'steinkern[arviz]'")

import matplotlib as mpl

mpl.use("Agg")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ 0.23 announces its successor on import
    import arviz

DATA = jnp.array([[0.5, 1.0], [1.5, 0.0]])

# ArviZ and what it plots with warn of their own future, and of the single chain.
pytestmark = pytest.mark.filterwarnings("ignore")


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


@pytest.mark.thorough
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


def test_a_missing_arviz_is_named(result, monkeypatch):
    for name in ("arviz", "arviz_base"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'steinkern\[arviz\]'"):
        result.to_arviz(DATA)


def test_what_does_not_fit_is_refused(result):
    with pytest.raises(ValueError, match="`data` is missing"):
        result.to_arviz()
    with pytest.raises(ValueError, match="`key` draws from the predictive distribution of a NumPyro or PyMC model"):
        result.to_arviz(DATA, key=jr.key(0))
    with pytest.raises(ValueError, match=r"leading axis of 30 particles, got shape \(2, 2\) for 'y'"):
        result.to_arviz(DATA, predictive={"y": DATA})
