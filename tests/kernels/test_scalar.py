"""Radial profiles against autodiff of their own formula, and bandwidths as numbers or rules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk

KERNELS = {
    "rbf": (sk.RBF(1.3), lambda r2: jnp.exp(-r2 / 2.6)),
    "imq": (sk.IMQ(0.7), lambda r2: 1 / jnp.sqrt(1 + r2 / 0.7)),
    "imq, another exponent": (sk.IMQ(0.7, exponent=-0.3), lambda r2: (1 + r2 / 0.7) ** -0.3),
}
kernel_cases = pytest.mark.parametrize(("kernel", "formula"), KERNELS.values(), ids=KERNELS.keys())
R2 = jnp.array([0.0, 1e-3, 0.5, 2.0, 30.0])


@kernel_cases
def test_profile_is_the_formula_and_its_derivatives(kernel, formula):
    value, derivative = kernel.profile(R2)
    np.testing.assert_allclose(value, formula(R2), rtol=1e-13)
    np.testing.assert_allclose(derivative, jax.vmap(jax.grad(formula))(R2), rtol=1e-12)
    np.testing.assert_allclose(kernel.second_derivative(R2), jax.vmap(jax.grad(jax.grad(formula)))(R2), rtol=1e-12)


@kernel_cases
def test_profile_is_elementwise_on_any_shape(kernel, formula):
    square = jnp.outer(R2, R2)
    for actual, expected in zip(kernel.profile(square), kernel.profile(square.reshape(-1)), strict=True):
        np.testing.assert_allclose(actual, expected.reshape(square.shape), rtol=1e-14)  # lanes of vectors may differ


@kernel_cases
def test_constant_slope_is_the_ratio_of_derivative_and_value_or_none(kernel, formula):
    value, derivative = kernel.profile(R2)
    slope = kernel.constant_slope(R2.dtype)
    if slope is None:
        assert np.ptp(derivative / value) > 0.01
    else:
        np.testing.assert_allclose(derivative, slope * value, rtol=1e-13)


@kernel_cases
def test_float32_distances_stay_in_float32(kernel, formula):
    r2 = R2.astype(jnp.float32)
    slope = kernel.constant_slope(r2.dtype)
    results = *kernel.profile(r2), kernel.second_derivative(r2), r2 if slope is None else slope
    assert {result.dtype for result in results} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        pytest.param(sk.RBF(sk.Median(factor=0.4)), sk.Median(factor=0.4), id="given"),
        pytest.param(sk.RBF(), sk.Median(), id="default of the rbf: the median trick"),
        pytest.param(sk.IMQ(), sk.Median(factor=1.0), id="default of the imq: the plain median"),
    ],
)
def test_adapt_puts_the_value_of_the_rule_in_its_place(kernel, rule, key):
    adapted, expected = eqx.filter_jit(lambda points: (kernel.adapt(points), rule(points)))(jr.normal(key, (6, 2)))
    assert type(adapted) is type(kernel)
    np.testing.assert_allclose(adapted.bandwidth, expected, rtol=1e-14)


def test_adapt_leaves_a_number_as_it_is(key):
    assert sk.RBF(1.3).adapt(jr.normal(key, (6, 2))).bandwidth == 1.3
