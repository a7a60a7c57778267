"""Curvature that scales: labels drawn from the model, large factors in blocks, and metrics in single precision."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg

import steinkern as sk
from steinkern.core._xla import MIN_SPLIT_LENGTH
from steinkern.targets.kfac.factors import second_moment, second_moment_with_ones
from tests.helpers.kfac_cases import NOISY, RELU, Case, cases, flat, measured
from tests.helpers.oracles import assert_close
from tests.linalg.test_operators import dense_matrix, largest_array

pytestmark = pytest.mark.thorough

BINARY = Case("relu and logits", sk.Bernoulli(), jax.nn.relu)
KNOWN = Case("tanh and known noise", sk.Gaussian(0.7), jnp.tanh)


def options(case: Case, **keywords):
    """The curvature of a case with these options, of a point and data."""
    return partial(measured, case.output, case.likelihood, case.target, **keywords)


@cases(RELU, NOISY, BINARY, KNOWN, default=2)
def test_drawn_labels_give_the_fisher_information_in_expectation(case, generator):
    """Every one of several seeds, so that no single draw decides."""
    point, data = case.draw(generator, 3)
    exact = dense_matrix(options(case)(point, data))
    seeds = [dense_matrix(options(case, draws=2000, seed=seed)(point, data)) for seed in range(4)]
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    # The mean of 6,000 squares u², with u a score. The widest is that of the noise's logarithm, u = χ²/2 − 1 with two
    # degrees of freedom: E u⁴ = 9, a standard error of √(8/6000) = 0.037, and four of them.
    errors = [np.max(np.abs(matrix - exact) / scale) for matrix in seeds]
    assert max(errors) < 0.15


def test_labels_are_those_of_the_seed_and_the_particle(generator):
    point, data = RELU.draw(generator, 3)
    first, again, other = (dense_matrix(options(RELU, draws=1, seed=seed)(point, data)) for seed in (0, 0, 1))
    assert_close(first, again)
    assert np.max(np.abs(first - other)) > 1e-3
    kfac = sk.KFAC(RELU.output, RELU.likelihood, draws=1)
    points = jnp.stack([point, point[::-1], point])
    batch = jax.jit(lambda points: kfac.at(RELU.target, points, data))(points)
    each = [dense_matrix(jax.tree.map(lambda leaf, i=i: leaf[i], batch)) for i in range(3)]
    assert_close(each[0], each[2])
    assert_close(each[0], first)


def test_one_draw_costs_one_backward_pass_whatever_the_number_of_outputs(generator):
    examples, width, outputs = 30, 40, 20
    case = Case("wide", sk.Categorical(), jax.nn.relu, (8, width, outputs))
    point, data = case.draw(generator, examples)

    def largest(**keywords):
        return largest_array(
            lambda point: sk.KFAC(case.output, case.likelihood, **keywords)(case.target, point, data), point
        )

    assert largest() == examples * outputs * width
    assert largest(draws=1) == max(examples * (width + 1), (width + 1) ** 2, len(point))


class Silent(sk.Gaussian):
    """Draws no labels."""

    sample = sk.targets.AbstractLikelihood.sample


def test_a_likelihood_that_draws_no_labels_says_so(generator):
    point, data = KNOWN.draw(generator, 2)
    kfac = sk.KFAC(KNOWN.output, Silent(), draws=1)
    with pytest.raises(ValueError, match=r"`Silent` cannot draw labels: define its method `sample\(key, output\)`"):
        jax.eval_shape(lambda point: kfac(KNOWN.target, point, data), point)


@pytest.mark.parametrize(("examples", "rows"), [(1, [0]), (3, [0, 2, 4]), (7, range(7)), (9, range(7))])
def test_on_some_examples_curvature_is_that_of_a_batch_of_them(examples, rows, generator):
    """Evenly spaced ones, which stand for all."""
    point, data = RELU.draw(generator, 7)
    actual = options(RELU, examples=examples)(point, data)
    expected = options(RELU)(point, jax.tree.map(lambda leaf: leaf[np.array(rows)], data))
    for part, other in zip(actual.parts, expected.parts, strict=True):
        assert_close(dense_matrix(part), dense_matrix(other))


@pytest.mark.parametrize("largest", [1, 2, 3, 4, 7, 8])
def test_a_large_factor_is_the_dense_one_within_its_blocks(largest, key):
    rows = jr.normal(key, (5, 7))
    operator = second_moment(rows, jnp.asarray(0.3), largest)
    sizes = {1: [1] * 7, 2: [2, 2, 2, 1], 3: [3, 3, 1], 4: [4, 3], 7: [7], 8: [7]}[largest]
    mask = scipy.linalg.block_diag(*[np.ones((size, size)) for size in sizes])
    assert_close(dense_matrix(operator), mask * 0.3 * np.asarray(rows.T @ rows))


@pytest.mark.parametrize(("count", "largest"), [(7, 10), (MIN_SPLIT_LENGTH, 10), (MIN_SPLIT_LENGTH, 3)])
def test_rows_with_a_one_are_those_that_have_a_column_of_ones(count, largest, key):
    rows = jr.normal(key, (count, 5))
    with_ones = jnp.concatenate([rows, jnp.ones((count, 1))], axis=1)
    expected = dense_matrix(second_moment(with_ones, jnp.asarray(0.3), largest))
    actual = dense_matrix(second_moment_with_ones(rows, jnp.asarray(0.3), largest))
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * count)


def test_large_sides_are_cut_into_blocks(generator):
    point, data = RELU.draw(generator, 3)  # layers of 3 to 4 and of 4 to 2
    whole, cut = (options(RELU, largest_side=side)(point, data) for side in (5, 2))
    for part, other in zip(whole.parts, cut.parts, strict=True):
        for side in ("left", "right"):
            dense, blocks = (dense_matrix(getattr(each, side)) for each in (part, other))
            assert_close(blocks, np.where(blocks != 0, dense, 0))
            assert np.all(blocks[:2, :2] != 0)
            if len(blocks) > 2:
                assert np.all(blocks[:2, 2:] == 0)
    metric = jax.jit(lambda operator: operator.factorize(0.1).solve(jnp.ones(operator.size)))(cut)
    assert_close(dense_matrix(cut, 0.1) @ np.asarray(metric), np.ones(cut.size))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_metrics_in_single_precision_are_finite_for_dead_units_and_features_of_any_scale(scale, generator):
    """All but one feature are constant, and half of the hidden units are dead."""
    case = Case("dead units", sk.GaussianNoise(), jax.nn.relu, (6, 8, 3))
    network, data = case.network(generator), case.data(generator, 20)
    bias = jnp.where(jnp.arange(8) < 4, -1e9, network["layers"][0].bias)
    features = jnp.where(jnp.arange(6)[None] > 0, 1.0, data.x) * scale
    network["layers"][0] = eqx.tree_at(lambda layer: layer.bias, network["layers"][0], bias)
    data = data._replace(x=features)
    network, data = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == float else leaf, (network, data)
    )
    target, point = case.target.target.bind(network), flat(network)

    @jax.jit
    def solve(point):
        metric = case.kfac(target, point, data).factorize(1e-4)
        return metric.solve(jnp.ones_like(point)), metric.logdet()

    assert all(bool(jnp.all(jnp.isfinite(each))) for each in solve(point))
