"""Every constraint of NumPyro: to unconstrained coordinates and back in both precisions, or a refusal."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")

import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from_model = sk.interop.numpyro.from_model

SUPPORTS = {
    "circular": (constraints.circular, ()),
    "corr_cholesky": (constraints.corr_cholesky, (4, 4)),
    "corr_matrix": (constraints.corr_matrix, (4, 4)),
    "greater_than": (constraints.greater_than(2.0), (2,)),
    "greater_than_eq": (constraints.greater_than_eq(2.0), (2,)),
    "independent": (constraints.independent(constraints.positive, 1), (3,)),
    "interval": (constraints.interval(-2.0, 5.0), ()),
    "l1_ball": (constraints.l1_ball, (3,)),
    "less_than": (constraints.less_than(-3.0), ()),
    "less_than_eq": (constraints.less_than_eq(-3.0), ()),
    "lower_cholesky": (constraints.lower_cholesky, (3, 3)),
    "nonnegative": (constraints.nonnegative, ()),
    "open_interval": (constraints.open_interval(-2.0, 5.0), ()),
    "ordered_vector": (constraints.ordered_vector, (4,)),
    "positive": (constraints.positive, (2,)),
    "positive_definite": (constraints.positive_definite, (3, 3)),
    "positive_ordered_vector": (constraints.positive_ordered_vector, (4,)),
    "positive_semidefinite": (constraints.positive_semidefinite, (3, 3)),
    "real": (constraints.real, (2,)),
    "real_matrix": (constraints.real_matrix, (2, 3)),
    "real_vector": (constraints.real_vector, (3,)),
    "scaled_unit_lower_cholesky": (constraints.scaled_unit_lower_cholesky, (3, 3)),
    "simplex": (constraints.simplex, (5,)),
    "softplus_lower_cholesky": (constraints.softplus_lower_cholesky, (3, 3)),
    "softplus_positive": (constraints.softplus_positive, ()),
    "unit_interval": (constraints.unit_interval, ()),
    "zero_sum": (constraints.zero_sum(1), (4,)),
}
"""Constraints with a bijection from real coordinates, and the shape of a value."""
WITHOUT_BIJECTION = {
    "boolean": (constraints.boolean, ()),
    "complex": (constraints.complex, ()),  # NumPyro's coordinates of it are complex too
    "integer_greater_than": (constraints.integer_greater_than(0), ()),
    "integer_interval": (constraints.integer_interval(0, 3), ()),
    "nonnegative_integer": (constraints.nonnegative_integer, ()),
    "positive_definite_circulant_vector": (constraints.positive_definite_circulant_vector, (5,)),
    "positive_integer": (constraints.positive_integer, ()),
}
NO_SUPPORTS = {  # of a site with real coordinates, for other reasons
    "cat",  # of several sites' supports
    "dependent",  # a placeholder for what parameters decide
    "multinomial",  # of counts
    "sphere",  # refused by NumPyro itself, which names the reparametrization
    "is_dependent", "Constraint",
}  # fmt: skip


def test_every_constraint_of_numpyro_is_among_these():
    known = {*SUPPORTS, *WITHOUT_BIJECTION, *NO_SUPPORTS}
    assert set(constraints.__all__) <= known, set(constraints.__all__) - known


def model_on(constraint, shape):
    return lambda: numpyro.sample("x", dist.ImproperUniform(constraint, (), shape))


@pytest.mark.every(6)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", SUPPORTS)
def test_a_support_survives_the_round_trip(name, precision):
    with jax.enable_x64(precision == "float64"):
        target = from_model(model_on(*SUPPORTS[name]))
        space = target.space
        points = jr.uniform(jr.key(0), (200, space.layout.size), minval=-2, maxval=2)  # where searches begin
        assert points.dtype == precision
        particles = jax.jit(jax.vmap(space.constrain))(points)
        space.check(particles)
        again = jax.jit(jax.vmap(space.unconstrain))(particles)
        # Matrices lose most digits: 2,000 points differed by at most 6,500 units of rounding, vectors by 2,000.
        np.testing.assert_allclose(again, points, atol=2e4 * float(jnp.finfo(precision).eps))


@pytest.mark.parametrize("name", WITHOUT_BIJECTION)
def test_a_support_without_real_coordinates_is_refused_by_the_name_of_its_site(name):
    with pytest.raises(
        ValueError, match=r"latent sites with a map from real coordinates, but NumPyro has none for 'x'"
    ):
        from_model(model_on(*WITHOUT_BIJECTION[name]))


def test_values_that_leave_their_support_by_rounding_are_inside_and_others_are_not():
    space = from_model(model_on(constraints.corr_cholesky, (2, 2))).space
    exact = np.array([[[1.0, 0.0], [0.6, 0.8]]])
    assert not constraints.corr_cholesky(exact * (1 + 1e-10))[0]
    space.check({"x": exact * (1 + 1e-10)})
    with pytest.raises(ValueError, match=r"`start` must lie inside their support; x has values outside"):
        space.check({"x": exact * 1.001}, "start")


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_fit_without_a_sampler_takes_its_own_start_on_correlations(precision):
    with jax.enable_x64(precision == "float64"), jax.numpy_dtype_promotion("standard"):
        result = sk.fit(
            jr.key(0), lambda: numpyro.sample("L", dist.LKJCholesky(2, concentration=2.0)), num_particles=50
        )
    # With concentration 2 a correlation has the density 3/4 (1 - r²), whose variance is 1/5. The standard
    # deviation of as many independent draws has an error of 8 percent.
    assert np.std(result.particles["L"][:, 1, 0]) == pytest.approx(0.2**0.5, rel=0.15)
