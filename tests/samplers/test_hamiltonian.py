"""Hamiltonian chains: trajectories that diverge, and steps of many sizes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.inference.sample.randomness import transition_noise
from steinkern.linalg.metrics import DiagonalMetric


def test_a_trajectory_that_has_diverged_waits_where_it_began_and_is_rejected():
    evaluated = []

    def log_density(x):
        jax.debug.callback(lambda x: evaluated.append(float(x[0])), x)
        return -0.5 * jnp.sum(x**2)

    target = sk.LogDensity(log_density).bind(jnp.zeros(1))
    sampler = sk.samplers.Hamiltonian(DiagonalMetric(jnp.ones(1)), 30.0, max_leaps=1, share=0)
    points = jnp.array([[0.5], [-0.5]])
    state = sampler.init(target, points)
    noise = sampler._draw(jr.key(0), points)._replace(length=jnp.asarray(300.0))
    for max_leaps in (1, 12):
        sampler = sk.samplers.Hamiltonian(sampler.metric, 30.0, max_leaps, share=0)
        evaluated.clear()
        after = sampler.transition(noise, state, target)
        jax.effects_barrier()
        assert int(after.leaps) == max_leaps
        assert len(evaluated) == 2 * max_leaps
        far = np.abs(evaluated) > 1
        assert far.sum() == 2  # each of the two chains is evaluated far out once
        assert set(np.array(evaluated)[~far]) <= {0.5, -0.5}
        np.testing.assert_array_equal(after.points, points)
        np.testing.assert_array_equal(after.acceptance, 0)
    np.testing.assert_array_equal(after.log_densities, state.log_densities)


def test_trajectories_of_small_steps_are_as_long_as_others():
    sampler = sk.samplers.Hamiltonian(DiagonalMetric(jnp.ones(2)), 0.5)
    one, many = (
        transition_noise(np.random.default_rng(0), sampler, 200, 10, 2, float, max_halvings) for max_halvings in (0, 4)
    )
    factors = np.asarray(many.jitter / one.jitter)
    np.testing.assert_allclose(factors, factors[:, :1].repeat(10, axis=1), rtol=1e-12)  # one for all chains
    assert (factors <= 1).all()
    assert (factors >= 2**-4).all()
    assert 1.5 < -np.log2(factors[:, 0]).mean() < 2.5  # 2 on average, with a standard error of 0.08
    np.testing.assert_allclose(many.length * factors[:, 0], one.length, rtol=1e-12)
    np.testing.assert_array_equal(many.momenta, one.momenta)
