"""The recurrent network against an independent recurrence, its padding, and the Fisher information of its outputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from studies.sentences import cells
from studies.sentences.model import Example, draw, features, logits

pytestmark = pytest.mark.thorough

WORDS, WIDTH, UNITS, CLASSES = 30, 6, 4, 3


@pytest.fixture
def network(key):
    words_key, bias_key = jr.split(jr.fold_in(key, 1))
    network = draw(key, jr.normal(words_key, (WORDS, WIDTH)), 1, CLASSES, UNITS)
    return network._replace(output=network.output[0], new_bias=jr.normal(bias_key, (2, UNITS)))


def sentence(key, number: int, length: int = 9) -> Example:
    tokens = jr.randint(key, (length,), 0, WORDS)
    return Example(tokens, jnp.asarray(number), jnp.asarray(1), None)


def recurrence(network, tokens) -> np.ndarray:
    """Both directions word by word, in NumPy."""
    result = []
    for direction, order in ((0, tokens), (1, tokens[::-1])):
        state = np.zeros(UNITS)
        inputs, recurrent = np.asarray(network.inputs[direction]), np.asarray(network.recurrent[direction])
        for token in order:
            a = np.asarray(network.words)[token] @ inputs + np.asarray(network.bias[direction])
            m = state @ recurrent
            reset = 1 / (1 + np.exp(-(a[:UNITS] + m[:UNITS])))
            update = 1 / (1 + np.exp(-(a[UNITS : 2 * UNITS] + m[UNITS : 2 * UNITS])))
            new = np.tanh(a[2 * UNITS :] + reset * (m[2 * UNITS :] + np.asarray(network.new_bias[direction])))
            state = (1 - update) * new + update * state
        result.append(state)
    return np.concatenate(result)


@pytest.mark.parametrize("number", [1, 5, 9])
def test_features_are_those_of_an_independent_recurrence(number, network, key):
    example = sentence(key, number)
    expected = recurrence(network, np.asarray(example.tokens)[:number])
    np.testing.assert_allclose(features(network, example), expected, rtol=1e-12)


def test_padding_changes_neither_features_nor_gradients(network, key):
    short = sentence(key, 5)._replace(tokens=sentence(key, 5).tokens[:5])
    long = short._replace(tokens=jnp.concatenate([short.tokens, jnp.full((7,), 3)]))

    for one in (logits, jax.grad(lambda net, example: jnp.sum(jnp.sin(logits(net, example))))):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14),
            one(network, short),
            one(network, long),
        )


def test_an_empty_sentence_has_no_features_and_an_even_prediction(network, key):
    example = sentence(key, 0)
    np.testing.assert_array_equal(features(network, example), 0)
    np.testing.assert_allclose(jax.nn.softmax(logits(network, example)), 1 / CLASSES)
    gradient = jax.grad(lambda net: jnp.sum(logits(net, example)))(network)
    assert all(np.all(np.isfinite(leaf)) for leaf in gradient)


def test_dropout_is_unbiased_and_needs_a_key(network, key):
    example = sentence(key, 6)
    whole = features(network, example)
    np.testing.assert_allclose(features(network, example, 0.5), whole, rtol=1e-12)
    dropped = jax.vmap(lambda k: features(network, example._replace(key=k), 0.3))(jr.split(key, 2000))
    assert 0.27 < float(jnp.mean(dropped == 0)) < 0.33
    # Words dropped move what is left of the features: with those of the features alone it would be whole / 0.7.
    left = dropped != 0
    assert float(jnp.mean(jnp.abs(dropped - whole[None] / 0.7) > 1e-6, where=left)) > 0.5
    # Without inputs nothing but the last mask is random, and its mean is 1.
    deaf = network._replace(inputs=jnp.zeros_like(network.inputs))
    masked = jax.vmap(lambda k: features(deaf, example._replace(key=k), 0.3))(jr.split(key, 2000))
    np.testing.assert_allclose(jnp.mean(masked, axis=0), features(deaf, example), rtol=0.1)  # 2000 masks: 1.5 %


def cells_of(network) -> cells.CellNetwork:
    """The same network with Equinox's cells."""
    (particles, output) = cells.draw(jr.key(0), network.words, 1, CLASSES, UNITS)[1:]
    both = []
    for direction, cell in enumerate(jax.tree.map(lambda leaf: leaf[0], particles)):
        values = (network.inputs[direction].T, network.recurrent[direction].T, network.bias[direction])
        where = (lambda c: c.weight_ih, lambda c: c.weight_hh, lambda c: c.bias, lambda c: c.bias_n)
        for position, value in zip(where, (*values, network.new_bias[direction]), strict=True):
            cell = eqx.tree_at(position, cell, value)
        both.append(cell)
    head = eqx.tree_at(lambda layer: layer.weight, jax.tree.map(lambda leaf: leaf[0], output), network.output)
    return cells.CellNetwork(network.words, tuple(both), head)


@pytest.mark.parametrize(("number", "dropout"), [(0, 0.0), (5, 0.0), (9, 0.5)])
def test_the_network_of_cells_is_the_same_function(number, dropout, network, key):
    example = sentence(key, number)._replace(key=jr.fold_in(key, 2) if dropout else None)
    expected = logits(network, example, dropout)
    np.testing.assert_allclose(cells.logits(cells_of(network), example, dropout), expected, rtol=1e-12, atol=1e-14)


def test_kfac_has_a_block_for_every_matrix_of_the_cells(network, key):
    whole = cells_of(network)
    particles, shared = sk.split(whole, cells.PARTICLES)
    target = sk.Posterior(cells.log_prior, lambda one, example: 0.0, 3, shared=shared).bind(particles)
    examples = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), sentence(key, 5))
    curvature = sk.KFAC(cells.logits, sk.Categorical())
    blocks = curvature(target, target.space.unconstrain(particles), examples).parts
    sizes = [WIDTH * 3 * UNITS, UNITS * 3 * UNITS, 3 * UNITS, UNITS] * 2
    assert [block.size for block in blocks] == [*sizes, CLASSES * 2 * UNITS]
