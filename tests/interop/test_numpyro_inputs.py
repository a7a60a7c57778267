"""NumPyro models whose parameters or arguments would be taken for something else."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")

import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints

from steinkern.interop import _model

from_model = sk.interop.numpyro.from_model


def with_parameter(y):
    scale = numpyro.param("scale", 2.0, constraint=constraints.positive)
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_a_parameter_without_a_prior_is_refused_with_a_way_out_that_works():
    y = jnp.zeros(3)
    with pytest.raises(ValueError, match=r"'scale' is a `numpyro.param`.*numpyro.sample.*hide=\['scale'\]"):
        from_model(with_parameter, y)
    fixed = handlers.block(handlers.substitute(with_parameter, data={"scale": jnp.asarray(3.0)}), hide=["scale"])
    target = from_model(fixed, y).bind({"mean": jnp.zeros(())})
    density = target.log_density(jnp.ones(1))
    expected = dist.Normal(0.0, 1.0).log_prob(1.0) + 3 * dist.Normal(1.0, 3.0).log_prob(0.0)
    np.testing.assert_allclose(density, expected, rtol=1e-6)


def counts(y):
    rate = numpyro.sample("rate", dist.Exponential(1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def test_whole_numbers_that_would_wrap_around_are_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"the arguments of `model`.*wrap around"):
        from_model(counts, np.array([1, 2**40]))


def test_arrays_that_a_model_closes_over_are_checked_as_its_arguments_are():
    times = 1.7e9 + np.arange(6.0)

    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("mean", dist.Normal()), 1.0), obs=times)

    with jax.enable_x64(False), pytest.raises(ValueError, match=r"`times` loses its digits"):
        sk.sample(jr.key(0), model)


def test_masked_arguments_are_refused():
    with pytest.raises(ValueError, match=r"the arguments of `model`.*masked"):
        from_model(counts, np.ma.masked_array([1, 2], mask=[True, False]))


def test_the_last_draw_from_the_prior_is_tried_as_well(monkeypatch):
    """Nothing is usable before the draw that is the last allowed: it is, and is taken."""
    target, tried = from_model(counts, np.array([1, 2])), []

    def usable_at(target, particles):
        tried.append(particles)
        return jnp.full(2, len(tried) == 3)

    monkeypatch.setattr(_model, "usable_at", usable_at)
    monkeypatch.setattr(_model, "_ATTEMPTS", 3)
    drawn = target.prior(jr.key(0), 2)
    np.testing.assert_array_equal(drawn["rate"], tried[-1]["rate"])
    tried.clear()
    monkeypatch.setattr(_model, "_ATTEMPTS", 2)
    with pytest.raises(ValueError, match=r"after 2 draws.*2 of 2 particles"):
        target.prior(jr.key(0), 2)


def test_a_legacy_key_draws_the_same_prior():
    target = from_model(counts, np.array([1, 2]))
    legacy, typed = (target.prior(make(3), 2)["rate"] for make in (jr.PRNGKey, jr.key))
    np.testing.assert_allclose(legacy, typed, rtol=1e-12)  # two types of keys, two programs
