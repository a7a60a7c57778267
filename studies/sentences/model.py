"""A bidirectional GRU over word vectors and a softmax of its features: one sentence at a time, `vmap` for many."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from steinkern.core.types import Key, Scalar

UNITS = 50
"""Hidden units in each direction."""
PARTICLES = "output"
"""The leaf that is a particle; all others are shared."""


class Network(NamedTuple):
    """All parameters. Direction 0 reads forwards, 1 backwards; gates come in the order reset, update, new."""

    words: Float[Array, "vocabulary width"]
    inputs: Float[Array, "2 width 3*units"]
    recurrent: Float[Array, "2 units 3*units"]
    bias: Float[Array, "2 3*units"]
    new_bias: Float[Array, "2 units"]
    output: Float[Array, "... classes 2*units"]
    """The weights of the softmax: one set, or one a particle."""


class Example(NamedTuple):
    """A sentence: its words' indices, how many of them count, its label, and a key for dropout (`None`: no dropout)."""

    tokens: Int[Array, " length"]
    length: Int[Array, ""]
    label: Int[Array, ""]
    key: Key | None


def draw(
    key: Key, words: Float[Array, "vocabulary width"], particles: int, classes: int = 2, units: int = UNITS
) -> Network:
    """A network with the given word vectors and random weights: uniform in ±1/√units, the outputs N(0, 1/units)."""
    width = words.shape[1]
    keys = jr.split(key, 4)
    bound = units**-0.5
    shapes = ((2, width, 3 * units), (2, units, 3 * units), (2, 3 * units))
    inputs, recurrent, bias = (
        jr.uniform(k, s, words.dtype, -bound, bound) for k, s in zip(keys[:3], shapes, strict=True)
    )
    output = bound * jr.normal(keys[3], (particles, classes, 2 * units), words.dtype)
    return Network(words, inputs, recurrent, bias, jnp.zeros((2, units), words.dtype), output)


def gru(
    network: Network, projected: Float[Array, "length 2 gates"], length: Int[Array, ""]
) -> Float[Array, " features"]:
    """The last state of both directions after the first `length` words (Cho et al., 2014); 0 for no words.

    r = σ(a_r + U_r h), u = σ(a_u + U_u h), c = tanh(a_c + r ⊙ (U_c h + b)), h ← (1 − u) ⊙ c + u ⊙ h, where a is the
    projected word. The reset gate multiplies U_c h, as cuDNN and Equinox have it, so that one product serves all gates.
    """
    units = network.recurrent.shape[1]
    times = jnp.arange(projected.shape[0], dtype=length.dtype)
    backwards = projected[jnp.clip(length - 1 - times, 0), 1]
    both = jnp.stack([projected[:, 0], backwards], axis=1)

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        time, word = now
        memory = jnp.einsum("du,dug->dg", state, network.recurrent)
        reset, update = jnp.split(jax.nn.sigmoid(word[:, : 2 * units] + memory[:, : 2 * units]), 2, axis=1)
        new = jnp.tanh(word[:, 2 * units :] + reset * (memory[:, 2 * units :] + network.new_bias))
        return jnp.where(time < length, (1 - update) * new + update * state, state), None

    last, _ = jax.lax.scan(step, jnp.zeros((2, units), projected.dtype), (times, both))
    return last.reshape(-1)


def features(network: Network, example: Example, dropout: float = 0.0) -> Float[Array, " features"]:
    """h_RNN(x): what the softmax sees. Dropout, where there is a key, of entries of the words and of the features."""
    sizes = network.words.shape[1], 2 * network.recurrent.shape[1]
    word_mask, feature_mask = dropout_masks(example.key, sizes, dropout, network.words.dtype)
    words = network.words[example.tokens] * word_mask[None, :]
    projected = jnp.einsum("lw,dwg->ldg", words, network.inputs) + network.bias[None]
    return gru(network, projected, example.length) * feature_mask


def logits(network: Network, example: Example, dropout: float = 0.0) -> Float[Array, " classes"]:
    """w_yᵀ h_RNN(x) for every class y, for a network with one set of output weights."""
    return jnp.matmul(network.output, features(network, example, dropout))


def log_prior(network: Network) -> Scalar:
    """N(0, 1) on the output weights."""
    return -0.5 * jnp.sum(network.output**2)


def dropout_masks(key: Key | None, sizes: tuple[int, int], dropout: float, dtype: jnp.dtype) -> list[Array]:
    """Factors of the words and of the features: 0 with probability `dropout`, else 1/(1 − dropout); 1 without a key.

    A sentence's words share one mask (Gal and Ghahramani, 2016).
    """
    if key is None:
        return [jnp.ones(size, dtype) for size in sizes]
    masks = [jr.bernoulli(k, 1 - dropout, (size,)) for k, size in zip(jr.split(key), sizes, strict=True)]
    return [mask.astype(dtype) / (1 - dropout) for mask in masks]
