"""The networks of the image study: a fully connected one, and a convolutional one of LeNet's size."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from steinkern.core.types import Key, check_choice

NETWORKS = {"mlp": "MLP", "lenet": "LeNet"}
"""Their names in tables."""
CHANNELS = (6, 16)
"""Of the convolutions."""
HIDDEN = {"mlp": (400, 400), "lenet": (120, 84)}
"""The widths of the fully connected layers before the last one."""


class Network(eqx.Module):
    """Convolutions, each with ReLU and the largest of every 2×2 pixels, then ReLU layers (LeCun et al., 1998).

    The fully connected network has no convolutions: its layers see all pixels.
    """

    convolutions: tuple[eqx.nn.Conv2d, ...]
    hidden: tuple[eqx.nn.Linear, ...]
    head: eqx.nn.Linear

    def __call__(self, image: Float[Array, "height width"]) -> Float[Array, " classes"]:
        x = image[None]
        for convolution in self.convolutions:
            x = max_pool(jax.nn.relu(convolution(x)))
        x = x.reshape(-1)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.head(x)


def draw(key: Key, network: str, shape: tuple[int, int], classes: int, hidden: Sequence[int] | None = None) -> Network:
    """A network with Equinox's random weights, uniform within ±1/√inputs.

    Args:
        key: PRNG key.
        network: one of `NETWORKS`.
        shape: of an image.
        classes: outputs.
        hidden: the widths of the fully connected layers before the last one; those of `HIDDEN` by default.
    """
    check_choice("network", network, tuple(NETWORKS))
    widths = tuple(HIDDEN[network] if hidden is None else hidden)
    kernel = 5 if min(shape) >= 16 else 3
    *keys, head_key = jr.split(key, len(widths) + len(CHANNELS) + 1)
    convolutions, features = [], shape[0] * shape[1]
    if network == "lenet":
        height, width = shape
        for inputs, outputs, layer_key in zip((1, *CHANNELS[:-1]), CHANNELS, keys, strict=False):
            # The first one keeps the size of the image.
            padding = kernel // 2 if inputs == 1 else 0
            convolutions.append(
                eqx.nn.Conv2d(inputs, outputs, kernel, padding=padding, dtype=jnp.float32, key=layer_key)
            )
            height, width = ((size + 2 * padding - kernel + 1) // 2 for size in (height, width))
        features = CHANNELS[-1] * height * width
    sizes = (features, *widths)
    layers = tuple(
        eqx.nn.Linear(inputs, outputs, dtype=jnp.float32, key=layer_key)
        for inputs, outputs, layer_key in zip(sizes[:-1], sizes[1:], keys[len(CHANNELS) :], strict=True)
    )
    head = eqx.nn.Linear(sizes[-1], classes, dtype=jnp.float32, key=head_key)
    return Network(tuple(convolutions), layers, head)


def max_pool(x: Float[Array, "channels height width"]) -> Float[Array, "channels rows columns"]:
    """The largest of every 2×2 pixels; an odd last row or column is left out."""
    channels, height, width = x.shape[0], x.shape[1] // 2, x.shape[2] // 2
    even = x[:, : 2 * height, : 2 * width]
    return jnp.max(even.reshape(channels, height, 2, width, 2), axis=(2, 4))
