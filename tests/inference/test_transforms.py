"""Whole fits as pure functions under `jit` and `vmap`, and optax schedules wherever a step size is taken."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk

pytestmark = pytest.mark.thorough

STEPS = 6


def log_likelihood(x, example):
    return -0.5 * jnp.sum((x - example) ** 2)


def log_prior(x):
    return -0.5 * jnp.sum(x**2)


SAMPLERS = {
    "average": sk.matrix_svgd("average", sk.Hessian(), decay=0.9, refresh_every=2),
    "sgld": sk.sgld(1e-3),
}


def whole_fit(sampler, key, start, data):
    posterior = sk.Posterior(log_prior, log_likelihood, num_data=8)
    algorithm = sk.as_blackjax(posterior, sampler, data, batch_size=4)

    def step(state, t):
        return algorithm.step(jr.fold_in(key, t), state)

    state, info = jax.lax.scan(step, algorithm.init(start), jnp.arange(STEPS))
    return state.position, info.velocity_norm


@pytest.mark.parametrize("name", [pytest.param("average", marks=pytest.mark.thorough), "sgld"])
def test_a_whole_fit_under_jit_and_vmap_is_that_of_fit(name: str, key):
    sampler = SAMPLERS[name]
    starts, data = jr.normal(key, (3, 5, 2)), jr.normal(jr.key(1), (3, 8, 2))
    keys = jr.split(jr.key(2), 3)
    mapped = jax.jit(jax.vmap(lambda *given: whole_fit(sampler, *given)))
    particles, norms = mapped(keys, starts, data)
    for own, (one, start, rows) in enumerate(zip(keys, starts, data, strict=True)):
        posterior = sk.Posterior(log_prior, log_likelihood, num_data=8)
        alone = sk.fit(one, posterior, sampler, start, rows, num_steps=STEPS, batch_size=4)
        np.testing.assert_allclose(particles[own], alone.particles, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(norms[own], alone.history.velocity_norm, rtol=1e-10)


def test_fit_itself_under_jit_says_what_to_do_instead():
    start = jnp.zeros((2, 1))
    with pytest.raises(ValueError, match=r"cannot run under `jit` or `vmap`.*as_blackjax"):
        jax.jit(lambda x: sk.fit(jr.key(0), log_prior, sk.svgd(), x, num_steps=1).points)(start)


def schedule(count):
    """A tenth at first, then nothing: a sampler that heeds it stands still after two steps."""
    return jnp.where(count < 2, 0.1, 0.0)


BY_SCHEDULE = {
    "svgd": lambda rate: sk.svgd(optimizer=optax.sgd(rate)),
    "mixture": lambda rate: sk.matrix_svgd("mixture", sk.Hessian(), optimizer=optax.rmsprop(rate)),
    "svn": lambda rate: sk.svn(sk.Hessian(), optimizer=optax.sgd(rate)),
    "gradient-free": lambda rate: sk.gradient_free_svgd(log_prior, optimizer=optax.sgd(rate)),
    "ensemble": lambda rate: sk.ensemble(optax.adagrad(rate)),
    "sgld": sk.sgld,
    "psgld": sk.psgld,
}


@pytest.mark.parametrize("name", BY_SCHEDULE)
def test_a_schedule_is_heeded_wherever_a_step_size_is_taken(name: str, key):
    algorithm = sk.as_blackjax(lambda x: -0.25 * jnp.sum(x**4), BY_SCHEDULE[name](schedule))

    def step(state, own_key):
        state, _ = algorithm.step(own_key, state)
        return state, state.position

    start = algorithm.init(jr.normal(key, (4, 2)))
    _, particles = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))(start, jr.split(key, 4))
    assert not np.array_equal(particles[0], particles[1])
    np.testing.assert_array_equal(particles[1], particles[3])  # steps of 0 add 0, in any order


def test_a_schedule_of_the_shared_parameters_is_heeded(key):
    parameters = {"own": jr.normal(key, (4, 2)), "all": jnp.ones(2)}
    particles, shared = sk.split(parameters, "own")
    target = sk.LogDensity(lambda p: -0.5 * jnp.sum((p["own"] - p["all"]) ** 2), shared=shared)
    sampler = sk.half_bayesian(sk.svgd(), optax.sgd(schedule))
    ends = [sk.fit(key, target, sampler, particles, num_steps=steps).shared["all"] for steps in (2, 4)]
    assert not np.array_equal(ends[0], parameters["all"])
    np.testing.assert_array_equal(ends[0], ends[1])  # steps of 0 add 0, and both runs are one program
