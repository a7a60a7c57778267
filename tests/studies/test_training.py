"""The compiled run of experiments against an explicit loop over steps."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from studies.training import measured_run

pytestmark = pytest.mark.thorough

NUM_DATA, BATCH = 20, 4
FEATURES = np.random.default_rng(0).standard_normal((NUM_DATA, 2))


def log_likelihood(weights, example):
    return -0.5 * (jnp.vdot(example, weights) - 1.0) ** 2


TARGET = sk.Posterior(lambda weights: -0.5 * jnp.sum(weights**2), log_likelihood, NUM_DATA).bind(jnp.zeros(2))
OPTIMIZER = optax.adam(0.1)
SAMPLERS = {
    "svgd": sk.svgd(optimizer=OPTIMIZER),
    "sgld": sk.sgld(0.01),
}


def draw(key):
    return jnp.asarray(FEATURES)[jr.randint(key, (BATCH,), 0, NUM_DATA)]


def measure(points):
    return {"mean": jnp.mean(points, axis=0), "points": points}


@eqx.filter_jit
def step(key, sampler, state, t):
    batch_key, sampler_key = jr.split(jr.fold_in(key, t))
    return sampler.step(sampler_key, state, TARGET, draw(batch_key))[0]


def by_hand(key, sampler, points, checkpoints) -> dict[str, np.ndarray]:
    state, recorded = eqx.filter_jit(sampler.init)(TARGET, points, draw(key)), []
    for t in range(max(checkpoints)):
        state = step(key, sampler, state, jnp.asarray(t))
        if t + 1 in checkpoints:
            recorded.append(np.asarray(state.points))
    return {"mean": np.stack([points.mean(0) for points in recorded]), "points": np.stack(recorded)}


@eqx.filter_jit
def run(key, sampler, points, checkpoints):
    return measured_run(key, sampler, TARGET, points, draw, checkpoints, measure)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_is_the_loop_of_its_steps_measured_at_the_checkpoints(name, key):
    sampler, points, checkpoints = SAMPLERS[name], jr.normal(key, (5, 2)), (1, 2, 5, 11)
    actual, expected = run(key, sampler, points, checkpoints), by_hand(key, sampler, points, checkpoints)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-10, atol=1e-12, err_msg=name)
