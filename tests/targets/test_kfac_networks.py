"""KFAC of networks that users write, and what is refused with a reason."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.targets import BoundTarget
from tests.helpers.kfac_cases import (
    NOISY,
    NUM_DATA,
    PRIOR_PRECISION,
    Case,
    Example,
    assert_exact,
    compared,
    filled,
    flat,
    log_prior,
    measured,
    measured_in,
)
from tests.helpers.oracles import assert_close
from tests.linalg.test_operators import dense_matrix, largest_array

pytestmark = pytest.mark.thorough


class Mixed(eqx.Module):
    """Layers deep in the tree between parameters of other kinds, a scalar output, and a layer of a scalar input."""

    scale: jax.Array
    mlp: eqx.nn.MLP
    norm: eqx.nn.LayerNorm
    time: eqx.nn.Linear

    def __init__(self, *, key):
        self.scale = jnp.ones((1, 3))
        self.mlp = eqx.nn.MLP(3, "scalar", 4, 1, jnp.tanh, key=key)
        self.norm = eqx.nn.LayerNorm(3)
        self.time = eqx.nn.Linear("scalar", 3, key=key)

    def __call__(self, x):
        return self.mlp(self.norm(self.scale[0] * x + self.time(x[0])))


def partitioned(network, trainable=eqx.is_inexact_array) -> tuple[Any, sk.Posterior, Callable[..., jax.Array]]:
    """The parameters of a user's network, their posterior and the model, by `eqx.partition` and `eqx.combine`."""
    parameters, rest = eqx.partition(network, trainable)

    def model(parameters, example):
        return jnp.atleast_1d(eqx.combine(parameters, rest)(example.x))

    def log_likelihood(parameters, example):
        return sk.Bernoulli().log_prob(model(parameters, example), example.label)

    def log_prior(parameters):
        return -0.5 * PRIOR_PRECISION * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))

    return parameters, sk.Posterior(log_prior, log_likelihood, NUM_DATA).bind(parameters), model


def one_example(generator) -> Example:
    return Example(jnp.asarray(generator.standard_normal((1, 3))), jnp.asarray(np.ones((1, 1))))


@pytest.mark.parametrize(
    ("make", "parts", "wrapped"),
    [
        pytest.param(partial(eqx.nn.MLP, 3, 1, 4, 2), [sk.linalg.Kronecker] * 3, lambda model: model, id="an MLP"),
        pytest.param(
            Mixed,
            [sk.linalg.Dense, *[sk.linalg.Kronecker] * 2, sk.linalg.Stack, sk.linalg.Kronecker],
            eqx.filter_jit,
            id="mixed, in a jitted model",
        ),
    ],
)
def test_a_network_of_ones_own_is_partitioned_and_combined_in_the_model(make, parts, wrapped, generator):
    parameters, target, model = partitioned(filled(generator, make))
    outcome = compared(wrapped(model), sk.Bernoulli(), target, flat(parameters), one_example(generator))
    assert [type(part) for part in outcome.kfac.parts] == parts
    assert_exact(outcome)


FROZEN = {
    "a layer": lambda net: net.layers[0],
    "the weights of a layer": lambda net: net.layers[0].weight,
    "the bias of a layer": lambda net: net.layers[1].bias,
}


@pytest.mark.parametrize("where", FROZEN.values(), ids=FROZEN.keys())
def test_what_a_partition_keeps_fixed_has_no_coordinates(where, generator):
    network = filled(generator, partial(eqx.nn.MLP, 3, 1, 4, 1))
    free = jax.tree.map(eqx.is_inexact_array, network)
    free = eqx.tree_at(where, free, replace_fn=lambda node: jax.tree.map(lambda _: False, node))
    parameters, target, model = partitioned(network, free)
    outcome = compared(model, sk.Bernoulli(), target, flat(parameters), one_example(generator))
    assert outcome.kfac.size == len(flat(parameters)) < len(flat(eqx.filter(network, eqx.is_array)))
    assert_exact(outcome)


def test_features_that_are_whole_numbers_are_as_good_as_any(generator):
    point, data = NOISY.draw(generator, 3)
    whole = Example(np.round(3 * data.x), data.label)
    expected = measured_in(NOISY, point, whole)
    with jax.numpy_dtype_promotion("standard"):  # as people run it who mix types
        mixed = whole._replace(x=whole.x.astype(np.int32))
        actual = measured_in(NOISY, point, mixed)
    assert_close(dense_matrix(actual), dense_matrix(expected))


def test_a_layer_whose_output_goes_nowhere_has_the_curvature_of_the_prior(generator):
    def model(first, second, x):
        second(x)
        return first(x)

    point, data = SQUARE.draw(generator, 2)
    kfac = measured(calling(model), sk.Gaussian(), SQUARE.target, point, data)
    assert_close(dense_matrix(kfac.parts[1]), PRIOR_PRECISION * np.eye(12))


# ------------------------------------------------------------------------------------------------------- size and type


def test_nothing_is_larger_than_the_jacobians_at_the_outputs_of_the_layers(generator):
    """Neither a d×d matrix, nor a matrix of outputs by outputs, or gradients in all weights, for every example."""
    examples, width = 30, 40
    case = Case("wide", sk.GaussianNoise(), jax.nn.relu, (8, width, width, 2), (True,) * 3)
    point, data = case.draw(generator, examples)
    target = case.target
    largest = largest_array(lambda point: case.kfac(target, point, data), point)
    jacobians = examples * 3 * width  # two means and the logarithm of the variance
    assert largest == jacobians < min(len(point) ** 2, examples * width**2, examples * 3 * len(point))


def test_float32_networks_have_float32_curvature(generator):
    network, data = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32), (NOISY.network(generator), NOISY.data(generator, 3))
    )
    target = NOISY.target.target.bind(network)
    shapes = jax.eval_shape(lambda point: NOISY.kfac(target, point, data), flat(network))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype("float32")}


# ------------------------------------------------------------------------------------------------------ what is refused


def calling(call) -> Callable[..., jax.Array]:
    """A model that does `call(first, second, x)` with the two layers of `SQUARE`."""
    return lambda parameters, example: call(*parameters["layers"], example.x)


SQUARE = Case("square", sk.Gaussian(), None, (3, 3, 3))


UNFOLLOWED = {
    "reshaped": (lambda a, b, x: b(a.weight.reshape(-1)[:3] * x), "the operation `reshape`"),
    "summed": (lambda a, b, x: b(a.weight.T.sum() * x), "the operation"),
    "normalised": (lambda a, b, x: b((a.weight / jnp.linalg.norm(a.weight)) @ x), "the operation"),
    "transposed as if outputs were inputs": (lambda a, b, x: b(a.weight.T @ x), "as if outputs were inputs"),
    "weights with weights": (lambda a, b, x: (a.weight @ b.weight) @ x, "multiplies weights with weights"),
    "in a condition": (
        lambda a, b, x: b(jax.lax.cond(x[0] > 0, lambda: a(x), lambda: x)),
        "the operation `cond`",
    ),
    "carried by a scan": (
        lambda a, b, x: b(jax.lax.scan(lambda w, _: (2 * w, w @ x), a.weight, None, 2)[1][0]),
        "carries it through a scan",
    ),
    "returned": (lambda a, b, x: jnp.append(b(x), a.weight), "the operation `reshape`"),
    "never used": (lambda a, b, x: b(x), "the model never uses it"),
}


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("name", UNFOLLOWED)
def test_weights_that_cannot_be_followed_are_refused_by_their_path(name, generator):
    call, reason = UNFOLLOWED[name]
    point, data = SQUARE.draw(generator, 2)
    kfac = sk.KFAC(calling(call), sk.Gaussian())
    message = r"`KFAC` cannot follow `layers\.0\.weight`: .*rules=.*`split`.*`Fisher"
    with pytest.raises(ValueError, match=message) as error:
        jax.eval_shape(lambda point: kfac(SQUARE.target, point, data), point)
    assert reason in str(error.value)


def test_a_way_out_is_the_diagonal_of_these_weights(generator):
    call, _ = UNFOLLOWED["transposed as if outputs were inputs"]
    point, data = SQUARE.draw(generator, 2)
    rules = {"layers.0": sk.kfac.DiagonalBlock()}
    outcome = compared(calling(call), sk.Gaussian(), SQUARE.target, point, data, rules=rules)
    assert isinstance(outcome.kfac.parts[0], sk.linalg.Diagonal)
    assert_close(outcome.kfac.parts[0].entries, np.diagonal(outcome.fisher)[:12])


class Stacked(eqx.Module):
    """Three layers as one, which the model scans over."""

    layers: eqx.nn.Linear

    def __init__(self, *, key):
        self.layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 3, key=key))(jr.split(key, 3))

    def __call__(self, x):
        return jax.lax.scan(lambda x, layer: (layer(x), None), x, self.layers)[0]


@pytest.mark.usefixtures("as_installed")
def test_stacked_layers_are_refused_by_their_path(generator):
    parameters, target, model = partitioned(filled(generator, Stacked))
    kfac = sk.KFAC(model, sk.Bernoulli())
    with pytest.raises(ValueError, match=r"cannot follow `layers\.weight`: the model scans over it"):
        jax.eval_shape(lambda point: kfac(target, point, one_example(generator)), flat(parameters))


class Attentive(eqx.Module):
    """A layer of one's own: weights whose outputs come last, an offset, and a gain."""

    kernel: jax.Array
    offset: jax.Array
    gain: jax.Array

    def __init__(self, inputs=3, outputs=4, *, key):
        self.kernel = jnp.ones((inputs, outputs))
        self.offset, self.gain = jnp.zeros(outputs), jnp.ones(outputs)

    def __call__(self, x):
        return jnp.sum(jnp.tanh(self.gain * (x @ self.kernel + self.offset)), keepdims=True)


def test_a_layer_of_ones_own_has_the_rule_that_is_given(generator):
    parameters, target, model = partitioned(filled(generator, Attentive))
    rules = {Attentive: (sk.kfac.KroneckerBlock("kernel", "offset", output_axis=-1), sk.kfac.ExactBlock("gain"))}
    outcome = compared(model, sk.Bernoulli(), target, flat(parameters), one_example(generator), rules=rules)
    assert [type(part) for part in outcome.kfac.parts] == [sk.linalg.Kronecker, sk.linalg.Dense]
    assert_exact(outcome)


@pytest.mark.usefixtures("as_installed")
def test_a_large_array_without_a_rule_is_refused_by_its_path(generator):
    parameters, target, model = partitioned(filled(generator, partial(Attentive, 3, 100)))
    kfac = sk.KFAC(model, sk.Bernoulli())
    with pytest.raises(ValueError, match=r"has no rule for `kernel` of shape \(3, 100\).*rules=.*`split`.*`Fisher"):
        jax.eval_shape(lambda point: kfac(target, point, one_example(generator)), flat(parameters))


BAD_RULES = {
    "no dictionary": ([sk.kfac.DiagonalBlock()], "`rules` must be a dictionary"),
    "no type": ({3: sk.kfac.DiagonalBlock()}, "`rules` must have types of layers or paths for keys, got 3"),
    "no block": ({"layers": "diagonal"}, "`rules` must hold blocks such as `KroneckerBlock"),
    "no such path": ({"layer": sk.kfac.DiagonalBlock()}, r"`rules` must name paths among layers\.0\.weight"),
    "two blocks for one array": (
        {eqx.nn.Linear: (sk.kfac.ExactBlock("weight"), sk.kfac.DiagonalBlock())},
        "`rules` must put every array into one block",
    ),
    "units of several sizes": ({"layers.0": sk.kfac.UnitwiseBlock()}, "`UnitwiseBlock` needs arrays of equal size"),
    "a bias before its weights": (
        {eqx.nn.Linear: sk.kfac.KroneckerBlock("bias", "weight")},
        "`KroneckerBlock` needs weights that come before their bias",
    ),
    "weights of one axis": ({"layers.0.bias": sk.kfac.KroneckerBlock()}, "needs weights of at least two axes"),
}


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("name", BAD_RULES)
def test_rules_that_are_none_are_refused(name, generator):
    rules, message = BAD_RULES[name]
    point, data = SQUARE.draw(generator, 2)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            lambda point: sk.KFAC(SQUARE.output, sk.Gaussian(), rules=rules)(SQUARE.target, point, data), point
        )


@pytest.mark.usefixtures("as_installed")
def test_parameters_without_a_linear_layer_are_refused():
    target = sk.Posterior(lambda x: 0.0, lambda x, example: jnp.sum(x), NUM_DATA).bind(jnp.zeros(3))
    with pytest.raises(ValueError, match=r"`KFAC` found no layer .*`equinox.nn.Linear`.* use `Fisher\(model"):
        sk.KFAC(lambda x, example: x, sk.Gaussian())(target, jnp.zeros(3), jnp.ones((2, 1)))


@pytest.mark.usefixtures("as_installed")
def test_constraints_on_a_layer_are_refused(generator):
    network = jax.tree.map(jnp.abs, NOISY.network(generator))
    target = sk.Posterior(log_prior, NOISY.log_likelihood, NUM_DATA, support={"layers": sk.positive}).bind(network)
    with pytest.raises(ValueError, match=r"`KFAC` needs layers without constraints.*layers\.0\.weight"):
        NOISY.kfac(target, flat(network), NOISY.data(generator, 2))


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("target", "data"),
    [
        pytest.param(
            BoundTarget(sk.LogDensity(log_prior), NOISY.target.space), jnp.ones((2, 3)), id="plain log density"
        ),
        pytest.param(NOISY.target, None, id="no data"),
    ],
)
def test_a_target_without_single_examples_is_refused(target, data):
    with pytest.raises(ValueError, match="`KFAC` needs single examples: give a `Posterior` and `data` to `fit`"):
        NOISY.kfac(target, jnp.zeros(target.space.layout.size), data)
