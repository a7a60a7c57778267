"""KFAC against the blocks of the exact Fisher matrix where it is exact, and against its definition where it is not."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import steinkern as sk
from steinkern.targets import BoundTarget
from tests.helpers.kfac_cases import (
    CURVED,
    LINEAR,
    NOISY,
    NUM_DATA,
    PRIOR_PRECISION,
    RATE,
    RELU,
    Case,
    assert_exact,
    cases,
    compared,
    compared_in,
    exact_blocks,
    filled,
    flat,
    measured_in,
)
from tests.helpers.kfac_networks import Calls, NetworkCase, defined_blocks
from tests.helpers.oracles import assert_close
from tests.linalg.test_operators import dense_matrix

# ------------------------------------------------------------------------------------------------ where KFAC is exact


@cases(*LINEAR)
def test_on_a_deep_linear_network_with_gaussian_noise_the_blocks_are_those_of_the_fisher_matrix(case, generator):
    assert_exact(compared_in(case, *case.draw(generator, 4)))


@cases(*CURVED)
def test_for_a_single_example_the_blocks_are_those_of_the_fisher_matrix(case, generator):
    """In the order of the coordinates too: the Fisher matrix is that of the flattened pytree."""
    assert_exact(compared_in(case, *case.draw(generator, 1)))


@cases(LINEAR[1], NOISY)
def test_the_noise_has_half_an_entry_an_output_and_example(case, generator):
    kfac = measured_in(case, *case.draw(generator, 4))
    assert_close(kfac.parts[-1].entries, [NUM_DATA * case.sizes[-1] / 2 + RATE * np.exp(0.4)])


# ------------------------------------------------------------------------------------------ the definition, by a loop


def layer_by_layer(case: Case, network, x, calls: Calls):
    """The network of a case, with its weights applied through `calls`."""
    *hidden, last = network["layers"]
    for index, layer in enumerate(hidden):
        x = case.activation(calls.layer(str(index), layer, x))
    x = calls.layer(str(len(hidden)), last, x)
    return jnp.append(x, network["log_variance"]) if case.noisy else x


@cases(RELU, NOISY, CURVED[4])
def test_the_blocks_are_the_product_of_the_means_over_examples(case, generator):
    network, data = case.network(generator), case.data(generator, 3)
    outcome = compared_in(case, flat(network), data)
    names = tuple(map(str, range(len(case.bias))))
    slow = NetworkCase(case.name, None, None, partial(layer_by_layer, case), case.sizes[:1], names)
    blocks = defined_blocks(slow, network, data.x, case.likelihood, "expand")
    expected = scipy.linalg.block_diag(*[blocks[name] for name in names])
    matrix = dense_matrix(outcome.kfac)
    assert_close(matrix[: len(expected), : len(expected)], expected)
    assert np.max(np.abs(matrix - exact_blocks(outcome))) > 1e-3  # it is an approximation


# ------------------------------------------------------------------------------------------------------------- scaling


def test_a_minibatch_stands_for_all_data(generator):
    point, data = NOISY.draw(generator, 3)
    twice = jax.tree.map(lambda rows: jnp.concatenate([rows, rows]), data)
    fewer = eqx.tree_at(lambda target: target.num_data, NOISY.target, np.asarray(3.0))
    matrix, doubled, scaled = (
        dense_matrix(measured_in(NOISY, point, batch, target))
        for batch, target in ((data, NOISY.target), (twice, NOISY.target), (data, fewer))
    )
    assert_close(doubled, matrix)
    prior = np.diag(np.append(np.full(len(point) - 1, PRIOR_PRECISION), RATE * np.exp(0.4)))
    assert_close(matrix - prior, NUM_DATA / 3 * (scaled - prior))


def test_tempering_multiplies_the_curvature(generator):
    point, data = NOISY.draw(generator, 3)
    tempered = NOISY.target.tempered(np.asarray(0.3))
    expected = 0.3 * dense_matrix(measured_in(NOISY, point, data))
    assert_close(dense_matrix(measured_in(NOISY, point, data, tempered)), expected)


# --------------------------------------------------------------------------------------------------------------- prior


def with_prior(log_prior) -> BoundTarget:
    return eqx.tree_at(lambda bound: bound.target.log_prior, NOISY.target, log_prior)


def coordinates(parameters) -> jax.Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(parameters)])


def test_the_prior_is_a_shift_of_its_mean_over_a_layer_and_exact_elsewhere(generator):
    point, data = NOISY.draw(generator, 3)
    precision = generator.uniform(size=len(point))
    flat_prior, curved = (
        measured_in(NOISY, point, data, with_prior(prior))
        for prior in (lambda _: 0.0, lambda parameters: -0.5 * jnp.sum(precision * coordinates(parameters) ** 2))
    )
    start = 0
    for part, without in zip(curved.parts[:-1], flat_prior.parts[:-1], strict=True):
        assert_close(part.shift, np.mean(precision[start : start + part.size]))
        assert without.shift == 0
        assert_close(part.left.matrix, without.left.matrix)
        assert_close(part.right.matrix, without.right.matrix)
        start += part.size
    assert_close(curved.parts[-1].entries, flat_prior.parts[-1].entries + precision[-1:])


def test_the_prior_counts_with_its_row_sums_and_those_below_zero_not_at_all(generator):
    point, data = NOISY.draw(generator, 3)
    slopes = np.arange(float(len(point)))

    def log_prior(parameters):
        x = coordinates(parameters)
        return -0.25 * jnp.sum(x) ** 2 + 0.5 * jnp.sum(slopes * x**2)

    kfac = measured_in(NOISY, point, data, with_prior(log_prior))
    rows = np.maximum(len(point) / 2 - slopes, 0.0)
    first, second = kfac.parts[0].size, kfac.parts[1].size
    assert_close(kfac.parts[0].shift, np.mean(rows[:first]))
    assert_close(kfac.parts[1].shift, np.mean(rows[first : first + second]))
    assert_close(kfac.parts[2].entries, [NUM_DATA * 2 / 2 + rows[-1]])


# ----------------------------------------------------------------------------------------- networks of other structure


def test_a_constrained_parameter_has_its_curvature_in_unconstrained_coordinates(generator):
    """With the noise's standard deviation σ = exp(u): log σ² = 2u, so 4 times the entry of the logarithm."""

    def model(parameters, example):
        (x,) = parameters["layers"]
        return jnp.concatenate([x(example.x), 2 * jnp.log(parameters["deviation"])[None]])

    def log_likelihood(parameters, example):
        return sk.GaussianNoise().log_prob(model(parameters, example), example.label)

    def log_prior(parameters):
        return -0.5 * jnp.sum(coordinates(parameters["layers"]) ** 2) - parameters["deviation"]

    network = {"layers": [filled(generator, eqx.nn.Linear, 3, 2)], "deviation": jnp.asarray(1.7)}
    target = sk.Posterior(log_prior, log_likelihood, NUM_DATA, support={"deviation": sk.positive}).bind(network)
    point = flat({**network, "deviation": np.log(1.7)})
    outcome = compared(model, sk.GaussianNoise(), target, point, NOISY.data(generator, 4))
    # "deviation" comes before "layers"; its own prior −σ has the curvature σ in u.
    assert_close(outcome.kfac.parts[0].entries, [4 * NUM_DATA + 1.7])
    assert_exact(outcome)
