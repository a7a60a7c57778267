"""The network of `model` with Equinox's recurrent cells, so that all of its weights can be particles with KFAC.

The word vectors are shared by all particles; the cells of both directions and the output weights are particles.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from steinkern.core.types import Key, Scalar

from .model import UNITS, Example, dropout_masks

PARTICLES = ("cells", "output")
"""The leaves that are particles."""


class CellNetwork(NamedTuple):
    """All parameters; those of `PARTICLES` may have a leading axis of particles."""

    words: Float[Array, "vocabulary width"]
    cells: tuple[eqx.nn.GRUCell, eqx.nn.GRUCell]
    """Of the directions, forwards and backwards."""
    output: eqx.nn.Linear
    """The softmax, without a bias."""


def draw(
    key: Key, words: Float[Array, "vocabulary width"], particles: int, classes: int = 2, units: int = UNITS
) -> CellNetwork:
    """Particles with the given word vectors and random weights: uniform in ±1/√units, the outputs N(0, 1/units)."""

    def one(particle_key: Key) -> tuple[tuple[eqx.nn.GRUCell, eqx.nn.GRUCell], eqx.nn.Linear]:
        forward_key, backward_key, output_key = jr.split(particle_key, 3)
        cell = partial(eqx.nn.GRUCell, words.shape[1], units, dtype=words.dtype)
        output = eqx.nn.Linear(2 * units, classes, use_bias=False, dtype=words.dtype, key=output_key)
        weight = units**-0.5 * jr.normal(output_key, output.weight.shape, words.dtype)
        cells = cell(key=forward_key), cell(key=backward_key)
        return cells, eqx.tree_at(lambda layer: layer.weight, output, weight)

    return CellNetwork(words, *jax.vmap(one)(jr.split(key, particles)))


def logits(network: CellNetwork, example: Example, dropout: float = 0.0) -> Float[Array, " classes"]:
    """The logits of both classes of a sentence, for a network of one particle; dropout as in `model.features`."""
    forward, backward = network.cells
    sizes = network.words.shape[1], forward.hidden_size + backward.hidden_size
    word_mask, feature_mask = dropout_masks(example.key, sizes, dropout, network.words.dtype)
    words = network.words[example.tokens] * word_mask[None, :]
    times = jnp.arange(words.shape[0], dtype=example.length.dtype)
    backwards = words[jnp.clip(example.length - 1 - times, 0)]
    ends = [_last_state(cell, read, example.length) for cell, read in ((forward, words), (backward, backwards))]
    return network.output(jnp.concatenate(ends) * feature_mask)


def log_prior(network: CellNetwork) -> Scalar:
    """N(0, 1) on all weights but the word vectors."""
    leaves = jax.tree.leaves((network.cells, network.output))
    return -0.5 * jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in leaves]))


def _last_state(
    cell: eqx.nn.GRUCell, words: Float[Array, "length width"], length: Int[Array, ""]
) -> Float[Array, " units"]:
    """The state after the first `length` words; 0 for no words."""

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        time, word = now
        return jnp.where(time < length, cell(word, state), state), None

    times = jnp.arange(words.shape[0], dtype=length.dtype)
    last, _ = jax.lax.scan(step, jnp.zeros((cell.hidden_size,), words.dtype), (times, words))
    return last
