"""KFAC of weights that are used at many positions: against its definition in loops, and exact where theory says so."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import steinkern as sk
from steinkern.targets.kfac import uses
from tests.helpers.kfac_cases import (
    NUM_DATA,
    PRIOR_PRECISION,
    Example,
    assert_exact,
    compared,
    exact_blocks,
    filled,
    flat,
    measured,
)
from tests.helpers.kfac_networks import NETWORKS, Calls, Linear, Pair, convolutional, defined_blocks
from tests.helpers.oracles import assert_close
from tests.linalg.test_operators import dense_matrix

pytestmark = pytest.mark.thorough

SHARINGS = ["expand", "reduce"]
CATEGORICAL = sk.Categorical()


def posterior(network) -> sk.Posterior:
    """With a normal prior; the likelihood is not read by KFAC."""

    def log_prior(parameters):
        return -0.5 * PRIOR_PRECISION * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))

    return sk.Posterior(log_prior, lambda parameters, example: 0.0, NUM_DATA).bind(network)


def by_example(model, rest=None):
    """The model of an example, from a function of a network and its input; `rest` is what `eqx.partition` left."""
    return lambda parameters, example: model(sk.merge(parameters, rest), example.x)


def examples(x) -> Example:
    return Example(x, jnp.zeros(len(x)))


def in_order(kfac: sk.linalg.Blocks) -> list[np.ndarray]:
    """The Kronecker products of a curvature, those of groups one by one."""
    products = []
    for part in kfac.parts:
        if isinstance(part, sk.linalg.Kronecker):
            products.append(dense_matrix(part))
        elif isinstance(part, sk.linalg.Stack) and isinstance(part.parts, sk.linalg.Kronecker):
            products += [dense_matrix(jax.tree.map(lambda leaf, i=i: leaf[i], part.parts)) for i in range(part.count)]
    return products


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_factors_are_those_of_a_double_loop_over_examples_and_positions(case, sharing, generator):
    network, data = filled(generator, case.make), case.data(generator, 2)
    weights, rest = eqx.partition(network, eqx.is_inexact_array)
    model = by_example(case.fast, rest)
    kfac = measured(model, CATEGORICAL, posterior(weights), flat(weights), examples(data), sharing=sharing)
    expected = defined_blocks(case, network, data, CATEGORICAL, sharing)
    actual = in_order(kfac)
    assert len(actual) == len(case.blocks) == len(expected)
    for name, matrix in zip(case.blocks, actual, strict=True):
        np.testing.assert_allclose(matrix, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("case", [case for case in NETWORKS if "conv" in case.name], ids=lambda case: case.name)
def test_convolutions_as_products_of_patches_give_the_same_factors(case, generator, monkeypatch):
    """As they are computed on a GPU."""
    network, data = filled(generator, case.make), case.data(generator, 2)
    weights, rest = eqx.partition(network, eqx.is_inexact_array)
    kfac = sk.KFAC(by_example(case.fast, rest), CATEGORICAL)
    arguments = posterior(weights), flat(weights), examples(data)
    plain = in_order(eqx.filter_jit(lambda *leaves: kfac(*leaves))(*arguments))
    multiplied = []
    monkeypatch.setattr(uses, "convolves_by_patches", lambda: multiplied.append(True) or True)
    by_patches = in_order(eqx.filter_jit(lambda *leaves: kfac(*leaves))(*arguments))
    for matrix, expected in zip(by_patches, plain, strict=True):
        np.testing.assert_allclose(matrix, expected, rtol=1e-9, atol=1e-12)
    assert bool(multiplied) != ("groups" in case.name or "depthwise" in case.name)


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_the_slow_models_compute_what_the_fast_ones_do(case, generator):
    network = filled(generator, case.make)
    (x,) = case.data(generator, 1)
    np.testing.assert_allclose(case.slow(network, x, Calls()), case.fast(network, x), rtol=1e-12)


# ------------------------------------------------------------------------------------------------- where they are exact

GAUSSIAN = sk.Gaussian(0.7)
DEEP = partial(Pair, Linear(3, 4), Linear(4, 2))


def deep(net, x):
    """A deep linear network at every position."""
    return jax.vmap(net.second)(jax.vmap(net.first)(x))


def deep_in_scans(net, x):
    return jax.lax.scan(lambda _, row: (None, net.second(net.first(row))), None, x)[1]


def convolved(net, x):
    """A convolution and a linear layer at each of its places."""
    return jax.vmap(net.second, 1)(net.first(x).reshape(4, -1))


CONVOLVED = partial(Pair, partial(eqx.nn.Conv2d, 3, 4, 2, stride=2, padding=1), Linear(4, 2))
GROUPED = partial(Pair, partial(eqx.nn.Conv2d, 4, 4, 2, groups=2, use_bias=False), Linear(4, 2))
LOOKED_UP = partial(Pair, partial(eqx.nn.Embedding, 5, 4), Linear(4, 2))


def looked_up_or_padded(net, x):
    """The index 5 is beyond the table, and gets zeros."""
    rows = jnp.take(net.first.weight, x + 1, axis=0, mode="fill", fill_value=0.0)
    return jax.vmap(net.second)(rows)


def draw(generator, make, shape, number: int = 3):
    network = filled(generator, make)
    if len(shape) == 1:
        return network, jnp.asarray(generator.integers(0, 5, (number, *shape)))
    return network, jnp.asarray(generator.standard_normal((number, *shape)))


EXACT = {
    "expand": {  # a loss at every position
        "tokens": (DEEP, deep, (4, 3)),
        "convolution": (CONVOLVED, convolved, (3, 3, 4)),
        "tokens in a scan": (DEEP, deep_in_scans, (4, 3)),
        "embedding": (LOOKED_UP, deep, (4,)),
        "embedding with padding": (LOOKED_UP, looked_up_or_padded, (4,)),
    },
    "reduce": {  # a loss of the mean or the sum over the positions
        "mean of tokens": (DEEP, lambda net, x: jnp.mean(deep(net, x), axis=0), (4, 3)),
        "sum over a convolution": (CONVOLVED, lambda net, x: jnp.sum(convolved(net, x), axis=0), (3, 3, 4)),
        "sum over a transposed convolution": (
            partial(Pair, partial(eqx.nn.ConvTranspose1d, 2, 3, 2, stride=2), Linear(3, 2)),
            lambda net, x: jnp.sum(jax.vmap(net.second, 1)(net.first(x)), axis=0),
            (2, 3),
        ),
        "sum of tokens": (DEEP, lambda net, x: jnp.sum(deep_in_scans(net, x), axis=0), (4, 3)),
        "mean before the last layer": (
            DEEP, lambda net, x: net.second(jnp.mean(jax.vmap(net.first)(x), axis=0)), (4, 3),
        ),
        "mean over a convolution in groups": (GROUPED, lambda net, x: jnp.mean(convolved(net, x), axis=0), (4, 3, 3)),
    },
}  # fmt: skip


@pytest.mark.parametrize(("sharing", "name"), [(sharing, name) for sharing, cases in EXACT.items() for name in cases])
def test_each_sharing_is_exact_for_deep_linear_networks_with_the_gaussian_loss_it_is_made_for(sharing, name, generator):
    make, model, shape = EXACT[sharing][name]
    network, x = draw(generator, make, shape)
    arguments = by_example(model), GAUSSIAN, posterior(network), flat(network), examples(x)
    outcome = compared(*arguments, sharing=sharing)
    # Of a convolution in groups the Fisher information between groups is left out.
    assert isinstance(outcome.kfac.parts[0], sk.linalg.Stack) == ("groups" in name)
    assert_exact(outcome)
    (other,) = {*SHARINGS} - {sharing}
    inexact = compared(*arguments, sharing=other)
    assert np.max(np.abs(dense_matrix(inexact.kfac) - exact_blocks(inexact))) > 1e-3


@pytest.mark.parametrize("sharing", SHARINGS)
def test_at_one_position_both_are_exact_for_a_single_example(sharing, generator):
    network = filled(generator, DEEP)
    x = jnp.asarray(generator.standard_normal((1, 1, 3)))
    model = by_example(lambda net, x: jnp.sum(jax.vmap(net.second)(jnp.tanh(jax.vmap(net.first)(x))), axis=0))
    assert_exact(compared(model, CATEGORICAL, posterior(network), flat(network), examples(x), sharing=sharing))


# ----------------------------------------------------------------------------------------- blocks that are always exact


class Normalised(eqx.Module):
    norm: eqx.Module
    head: eqx.nn.Linear

    def __init__(self, norm, *, key):
        self.norm, self.head = norm(), eqx.nn.Linear(4, 2, key=key)

    def __call__(self, x):
        return self.head(jnp.tanh(jnp.sum(jax.vmap(self.norm)(x), axis=0)))


NORMS = {
    "LayerNorm": partial(eqx.nn.LayerNorm, 4),
    "RMSNorm without bias": partial(eqx.nn.RMSNorm, 4, use_bias=False),
    "GroupNorm": partial(eqx.nn.GroupNorm, 2, 4),
    "RMSNorm": partial(eqx.nn.RMSNorm, 4),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_normalisations_have_the_fisher_information_of_each_unit(name, sharing, generator):
    network = filled(generator, partial(Normalised, NORMS[name]))
    x = jnp.asarray(generator.standard_normal((3, 2, 4)))
    outcome = compared(
        by_example(lambda net, x: net(x)), CATEGORICAL, posterior(network), flat(network), examples(x), sharing=sharing
    )
    norm = outcome.kfac.parts[0]
    assert isinstance(norm, sk.linalg.Stack)
    assert norm.interleaved
    size = norm.size
    assert_close(dense_matrix(norm), exact_blocks(outcome)[:size, :size])


def test_a_diagonal_is_taken_where_it_is_asked_for(generator):
    network = filled(generator, partial(Normalised, NORMS["LayerNorm"]))
    x = jnp.asarray(generator.standard_normal((3, 2, 4)))
    model = by_example(lambda net, x: net(x))
    for key in (eqx.nn.LayerNorm, "norm"):
        outcome = compared(
            model, CATEGORICAL, posterior(network), flat(network), examples(x), rules={key: sk.kfac.DiagonalBlock()}
        )
        norm = outcome.kfac.parts[0]
        assert isinstance(norm, sk.linalg.Diagonal)
        assert_close(dense_matrix(norm), exact_blocks(outcome)[:8, :8])


SQUARE = partial(Pair, Linear(3, 3), Linear(3, 2))


def out_of_a_scan(net, x, what):
    """A recurrent network that also uses, after the scan, the products or the biases of its steps."""

    def body(state, row):
        product = net.first.weight @ (row + state)
        return jnp.tanh(product + net.first.bias), {"product": product, "bias": net.first.bias}[what]

    state, each = jax.lax.scan(body, jnp.zeros(3), x)
    return net.second(state + jnp.sum(jnp.tanh(each), axis=0))


BIASES = {
    "in groups": (partial(Pair, partial(eqx.nn.Conv1d, 2, 4, 2, groups=2), Linear(4, 2)),
                  lambda net, x: net.second(jnp.tanh(jnp.sum(net.first(x), axis=1))), (2, 4), 1, 4),
    "after a product is scaled": (DEEP, lambda net, x: net.second(
        jnp.tanh(2 * (net.first.weight @ x[0]) + net.first.bias)), (1, 3), 1, 4),
    "beside a product that is used again": (DEEP, lambda net, x: net.second(
        (net.first.weight @ x[0] + net.first.bias) * (net.first.weight @ x[0])), (1, 3), 1, 4),
    "of a recurrent cell": (partial(Pair, partial(eqx.nn.LSTMCell, 3, 2), Linear(2, 2)),
                            lambda net, x: net.second(net.first(x[0], (x[1, :2], x[1, :2]))[0]), (2, 3), 2, 8),
    "whose product leaves a scan": (SQUARE, partial(out_of_a_scan, what="product"), (4, 3), 1, 3),
    "that leaves a scan": (SQUARE, partial(out_of_a_scan, what="bias"), (4, 3), 1, 3),
    "along the positions": (SQUARE, lambda net, x: net.second(
        jnp.sum(jnp.tanh(net.first.weight @ x.T + net.first.bias[None]), axis=1)), (3, 3), 1, 3),
    "along another axis": (SQUARE, lambda net, x: net.second(jnp.sum(
        jnp.tanh((net.first.weight @ x[0])[:, None] + net.first.bias[None]), axis=0)), (1, 3), 1, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_that_is_not_simply_added_to_its_product_has_an_exact_block_of_its_own(name, generator):
    make, model, shape, which, size = BIASES[name]
    network, x = draw(generator, make, shape)
    outcome = compared(by_example(model), CATEGORICAL, posterior(network), flat(network), examples(x))
    bias = outcome.kfac.parts[which]
    assert isinstance(bias, sk.linalg.Dense)
    assert bias.size == size
    start = sum(part.size for part in outcome.kfac.parts[:which])
    assert_close(bias.matrix, np.asarray(outcome.fisher)[start : start + size, start : start + size])


def test_the_blocks_lie_in_the_order_of_the_coordinates(generator):
    case = convolutional("conv2d", (2, 4, 3), 2, 2, 3, 2)
    network, x = filled(generator, case.make), case.data(generator, 1)
    kfac = measured(by_example(case.fast), CATEGORICAL, posterior(network), flat(network), examples(x))
    expected = defined_blocks(case, network, x, CATEGORICAL, "expand")
    whole = scipy.linalg.block_diag(*[expected[name] for name in case.blocks])
    np.testing.assert_allclose(kfac.as_matrix(), whole, rtol=1e-9, atol=1e-12)


def test_float32_networks_with_shared_weights_have_float32_curvature(generator):
    case = next(case for case in NETWORKS if case.name == "attention")
    network, rest = eqx.partition(filled(generator, case.make), eqx.is_inexact_array)
    network, x = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (network, case.data(generator, 2)))
    target = posterior(network)
    kfac = sk.KFAC(by_example(case.fast, rest), CATEGORICAL)
    shapes = jax.eval_shape(lambda point: kfac(target, point, Example(x, jnp.zeros(2))), flat(network))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype("float32")}
