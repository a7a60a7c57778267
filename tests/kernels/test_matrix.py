"""Every kernel against the paper's definition, and the limits in which one kernel is another."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.kernels import reference
from tests.helpers.cases import KERNEL_CASES, SOME_KERNELS, KernelCase, over, random_scored

# The compilation of definitions in such metrics takes seconds; `test_kfac_samplers` has them in the default set.
kernel_cases = over(KERNEL_CASES, {case.name for case in KERNEL_CASES if "mixture, kronecker" not in case.name})


@pytest.mark.every(3)
@kernel_cases
def test_velocity_matches_definition(case: KernelCase, key):
    kernel_key, source_key, at_key = jr.split(key, 3)
    kernel = case.make(kernel_key)
    source = random_scored(source_key, n=7, d=case.dim)
    at = jnp.concatenate([source.points, jr.normal(at_key, (2, case.dim))])

    @eqx.filter_jit
    def both(kernel, at, source):
        return kernel.velocity(at, source), reference.stein_velocity(kernel, at, source)

    actual, expected = both(kernel, at, source)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
@kernel_cases
def test_velocity_needs_no_jit(case: KernelCase, key):
    kernel_key, source_key = jr.split(key)
    kernel, source = case.make(kernel_key), random_scored(source_key, n=7, d=case.dim)
    jitted = eqx.filter_jit(type(kernel).velocity)(kernel, source.points, source)
    np.testing.assert_allclose(kernel.velocity(source.points, source), jitted, rtol=1e-10, atol=1e-12)


@pytest.mark.every(2)
@over(KERNEL_CASES, SOME_KERNELS)
def test_divergence_matches_autodiff_of_the_definition(case: KernelCase, key):
    kernel_key, source_key = jr.split(key)
    kernel = case.make(kernel_key)
    source = random_scored(source_key, n=5, d=case.dim)

    @jax.jit
    def both(at):
        expected = reference.divergence(lambda at: reference.stein_velocity(kernel, at, source), at)
        return kernel.divergence(at, source), expected

    actual, expected = both(source.points)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.every(2)
@over(KERNEL_CASES, SOME_KERNELS)
def test_kernel_is_symmetric_and_positive_semidefinite(case: KernelCase, key):
    kernel_key, points_key = jr.split(key)
    kernel = case.make(kernel_key)
    points = jr.normal(points_key, (9, case.dim))
    blocks = jax.jit(jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(points)))(points)  # i j l m
    np.testing.assert_allclose(blocks, jnp.transpose(blocks, (1, 0, 3, 2)), rtol=1e-10, atol=1e-12)
    gram = jnp.transpose(blocks, (0, 2, 1, 3)).reshape(9 * case.dim, 9 * case.dim)
    values = jnp.linalg.eigvalsh((gram + gram.T) / 2)
    assert values[0] > -1e-10 * values[-1]


def test_every_block_adapts_to_its_own_columns(key):
    points = jr.normal(key, (7, 5)) * jnp.array([[1.0, 1.0, 9.0, 9.0, 9.0]])
    first, second = sk.kernels.PerBlock((sk.RBF(), sk.IMQ()), (2, 3)).adapt(points).parts
    assert float(first.scalar.bandwidth) == pytest.approx(float(sk.RBF().adapt(points[:, :2]).bandwidth), rel=1e-12)
    assert float(second.scalar.bandwidth) == pytest.approx(float(sk.IMQ().adapt(points[:, 2:]).bandwidth), rel=1e-12)


def test_blocks_that_fit_are_not_refused():
    sk.kernels.PerBlock((sk.Graphical(sk.RBF(), [[0], [1, 2]]), sk.RBF()), [3, 2]).check(5)
