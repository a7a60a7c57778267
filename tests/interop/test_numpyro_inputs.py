"""NumPyro models whose parameters or arguments would be taken for something else."""

import functools
import itertools

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
from steinkern.interop._numpyro_call import is_model

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


def coin(heads):
    numpyro.sample("heads", dist.Bernoulli(numpyro.sample("fair", dist.Beta(2.0, 2.0))), obs=heads)


class Coin:
    def __call__(self):
        coin(1.0)


MODELS = {
    "a lambda": lambda: coin(1.0),
    "a partial": functools.partial(coin, 1.0),
    "a partial by keyword": functools.partial(coin, heads=1.0),
    "defaults": lambda *args, heads=1.0, **kwargs: coin(heads),
    "an object": Coin(),
    "under jit": jax.jit(lambda: coin(1.0)),
    "in a handler": handlers.condition(lambda: coin(None), {"heads": jnp.ones(())}),
    "an improper prior": lambda: numpyro.sample("x", dist.ImproperUniform(constraints.positive, (), ())),
    "a factor": lambda: numpyro.factor("x", 0.0),
    "numbers of two types": lambda: numpyro.sample("x", dist.Normal(jnp.zeros(3, "float32") + jnp.arange(3), 1.0)),
}
OTHERS = {
    "a model with arguments": coin,
    "one in a handler": handlers.condition(coin, {"heads": jnp.ones(())}),
    "a log density": lambda x: -jnp.sum(x**2),
    "a log density with a default": lambda x=0.0: -jnp.sum(x**2),
    "a log density of any number": lambda *x: -(x[0] ** 2),
    "a built-in": sum,
    "a number": 3.0,
}


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_what_comes_to_a_site_without_arguments_is_a_model(name):
    assert is_model({**MODELS, **OTHERS}[name]) == (name in MODELS)


def test_a_model_without_arguments_is_a_target_of_every_fit_and_of_saved_results(tmp_path):
    def model():
        numpyro.sample("x", dist.Normal(0.0, jnp.ones(2)))

    particles = {"x": jnp.array([[0.0, 1.0], [1.0, 0.5], [-1.0, 0.0]])}
    ours, theirs = (
        sk.fit(jr.key(0), target, sk.svgd(), particles, num_steps=2) for target in (model, from_model(model))
    )
    np.testing.assert_array_equal(ours.points, theirs.points)
    again = sk.load(ours.save(tmp_path / "run.npz"), target=model)
    np.testing.assert_array_equal(again.scores(), ours.scores())


def test_a_function_is_run_to_its_first_site_only_and_nothing_is_computed():
    runs = []

    def model():
        runs.append(jnp.ones(()))
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        runs.append("beyond the first site")

    assert is_model(model)
    assert len(runs) == 1
    assert isinstance(runs[0], jax.core.Tracer) or runs[0] == 1


def test_a_chain_of_states_summed_by_a_scan_is_a_target_as_the_refusal_says():
    changes, seen = jnp.array([[0.9, 0.1], [0.3, 0.7]]), jnp.array([0.2, -0.1, 1.9, 2.2])
    first = jnp.array([0.5, 0.5])

    def with_states(y):
        step = numpyro.sample("step", dist.Normal(1.0, 1.0))
        state = 0
        for i in range(len(y)):
            state = numpyro.sample(f"state{i}", dist.Categorical(first if i == 0 else changes[state]))
            numpyro.sample(f"y{i}", dist.Normal(step * state, 1.0), obs=y[i])

    with pytest.raises(
        ValueError, match=r"'state0' is discrete.*forward algorithm, a `jax.lax.scan`.*`numpyro.factor`"
    ):
        from_model(with_states, seen)

    def forward(y):
        step = numpyro.sample("step", dist.Normal(1.0, 1.0))
        emitted = dist.Normal(step * jnp.arange(2.0), 1.0).log_prob(y[:, None])

        def advance(log_alpha, log_emitted):
            return jax.nn.logsumexp(log_alpha[:, None] + jnp.log(changes), axis=0) + log_emitted, None

        log_alpha, _ = jax.lax.scan(advance, jnp.log(first) + emitted[0], emitted[1:])
        numpyro.factor("y", jax.nn.logsumexp(log_alpha))

    target = from_model(forward, seen).bind({"step": jnp.zeros(())})
    paths = np.array(list(itertools.product(range(2), repeat=len(seen))))
    chances = 0.5 * np.prod(np.asarray(changes)[paths[:, :-1], paths[:, 1:]], axis=1)
    likelihoods = np.exp(-0.5 * np.sum((np.asarray(seen) - 1.5 * paths) ** 2, axis=1)) / (2 * np.pi) ** 2
    expected = np.log(np.sum(chances * likelihoods)) - 0.5 * 0.5**2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(target.log_density(jnp.array([1.5])), expected, rtol=1e-6)
