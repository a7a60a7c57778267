"""Going on from a result, stopping, and what the defaults do to a stiff target."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

pytestmark = pytest.mark.thorough


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def log_gamma(parameters):
    return 2 * jnp.log(parameters["rate"]) - parameters["rate"]


def test_other_constraints_start_from_the_same_parameters(key):
    start = {"rate": jnp.exp(jr.normal(key, (20,)))}
    first = sk.fit(jr.key(0), sk.LogDensity(log_gamma, support=sk.positive), sk.svgd(), start, num_steps=100)
    # A step of 1e-9 leaves the particles where they are, up to itself.
    free = sk.fit(jr.key(0), lambda p: -0.5 * (p["rate"] - 3) ** 2, sk.svgd(optimizer=1e-9), first, num_steps=1)
    np.testing.assert_allclose(free.particles["rate"], first.particles["rate"], atol=1e-8)
    assert free.num_steps == 101


def test_no_velocity_at_all_is_not_convergence_unless_asked_for():
    result = sk.fit(
        jr.key(0),
        gaussian,
        sk.svgd(),
        jnp.ones((1, 2)),
        num_steps=50,
        tempering=lambda step: jnp.minimum(step.astype(float) / 20, 1.0),
    )
    assert result.num_steps == 50
    assert result.status is sk.Status.FINISHED
    assert np.all(np.abs(result.particles) < 1)


def test_rest_at_another_power_of_the_target_is_not_convergence(key):
    with pytest.warns(sk.SteinWarning, match="not converged"):
        result = sk.fit(
            jr.key(0),
            gaussian,
            sk.svgd(),
            jr.normal(key, (20, 1)),
            num_steps=400,
            tolerance=1e-2,
            tempering=lambda step: jnp.where(step < 300, 0.1, 1.0),
        )
    assert result.num_steps > 300


@pytest.mark.parametrize("kind", ["average", "mixture"])
def test_default_hessian_keeps_the_scales_of_a_stiff_gaussian(kind, key):
    def stiff(x):
        return -0.5 * (1e6 * x[0] ** 2 + x[1] ** 2)

    start = jr.normal(key, (30, 2))
    result = sk.fit(jr.key(0), stiff, sk.matrix_svgd(kind, sk.Hessian()), start, num_steps=300)
    # SVGD with 30 particles and the median bandwidth underestimates spread by some percent; collapse is a factor.
    np.testing.assert_allclose(np.std(result.points, axis=0), [1e-3, 1.0], rtol=0.3)


def test_particles_in_bfloat16_run(key):
    result = sk.fit(jr.key(0), gaussian, sk.svgd(), jr.normal(key, (6, 2), jnp.bfloat16), num_steps=5)
    assert result.particles.dtype == jnp.bfloat16
