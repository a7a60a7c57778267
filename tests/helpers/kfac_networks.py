"""Networks that use their weights at many positions, as users write them and position by position.

Every case has a fast model, with `vmap`, `scan` and convolutions, and a slow one of Python loops, which applies each
weight matrix through `Calls`. From that the factors of KFAC follow by their definition, in a double loop.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers.kfac_cases import NUM_DATA, PRIOR_PRECISION


class Calls:
    """Applies weights to one position at a time: adds an offset to each result, and keeps the inputs."""

    def __init__(self, offsets=None):
        self.offsets, self.inputs = offsets, defaultdict(list)

    def __call__(self, name: str, weight, x, bias=None):
        self.inputs[name].append(x if bias is None else jnp.append(x, 1.0))
        result = weight @ x if bias is None else weight @ x + bias
        return result if self.offsets is None else result + self.offsets[name][len(self.inputs[name]) - 1]

    def layer(self, name: str, layer: eqx.nn.Linear, x):
        return self(name, layer.weight, x, layer.bias)


class NetworkCase(NamedTuple):
    """A network, its two models, the shape of an example, and which weights are which blocks.

    `blocks` names the Kronecker products in their order; `last` those whose outputs are the last axis.
    """

    name: str
    make: Callable[..., Any]
    fast: Callable[[Any, Any], Any]
    slow: Callable[[Any, Any, Calls], Any]
    shape: tuple[int, ...]
    blocks: tuple[str, ...]
    last: tuple[str, ...] = ()
    tokens: int = 0

    def data(self, generator, number: int):
        if self.tokens:
            return jnp.asarray(generator.integers(0, self.tokens, (number, *self.shape)))
        return jnp.asarray(generator.standard_normal((number, *self.shape)))


def defined_blocks(case: NetworkCase, network, data, likelihood, sharing: str) -> dict[str, np.ndarray]:
    """Every Kronecker product by the definition of its factors, one position and one pair of entries at a time."""
    left, right, bias = defaultdict(float), defaultdict(float), {}
    shapes = {name: weight.shape for name, weight in matrices(case, network).items()}
    for example in data:
        calls = Calls()
        value = case.slow(network, example, calls)
        idle = {name: [np.zeros(shapes[name][0]) for _ in each] for name, each in calls.inputs.items()}
        jacobians = jax.jacobian(lambda offsets, x=example: case.slow(network, x, Calls(offsets)))(idle)
        information = np.asarray(likelihood.fisher(value))
        for name, inputs in calls.inputs.items():
            slopes = [np.asarray(jacobian) for jacobian in jacobians[name]]
            rows = [np.asarray(row) for row in inputs]
            if sharing == "reduce":
                slopes, rows = [sum(slopes)], [sum(rows) / len(rows)]
            for jacobian, row in zip(slopes, rows, strict=True):
                left[name] += NUM_DATA / len(data) * jacobian.T @ information @ jacobian
                right[name] += np.outer(row, row) / len(data) / len(rows)
            bias[name] = len(inputs[0]) > shapes[name][1]
    return {name: arranged(left[name], right[name], name in case.last, bias[name]) for name in left}


def arranged(left: np.ndarray, right: np.ndarray, last: bool, bias: bool) -> np.ndarray:
    """A Kronecker product and the prior, in the order of the coordinates."""
    if last:
        return np.kron(np.diag(np.diag(right)), left) + PRIOR_PRECISION * np.eye(len(left) * len(right))
    entries = list(product(range(len(left)), range(len(right))))
    if bias:
        entries.sort(key=lambda entry: entry[1] == len(right) - 1)
    matrix = np.array([[left[i, k] * right[j, l] for k, l in entries] for i, j in entries])
    return matrix + PRIOR_PRECISION * np.eye(len(entries))


def matrices(case: NetworkCase, network) -> dict[str, Any]:
    """The weight matrices that the slow model applies, by their names."""
    weights = {}

    class Watching(Calls):
        def __call__(self, name, weight, x, bias=None):
            weights[name] = weight
            return super().__call__(name, weight, x, bias)

    example = jnp.zeros(case.shape, int) if case.tokens else jnp.zeros(case.shape)
    case.slow(network, example, Watching())
    return weights


# ------------------------------------------------------------------------------------------------------------ networks


class Pair(eqx.Module):
    first: Any
    second: Any

    def __init__(self, first, second, *, key):
        self.first, self.second = first(key=key), second(key=key)


Linear = partial(partial, eqx.nn.Linear)
TOKENS = partial(Pair, Linear(3, 4), Linear(4, 2, use_bias=False))


def tokens_slow(net, x, calls):
    hidden = [jnp.tanh(calls.layer("first", net.first, row)) for row in x]
    return calls.layer("second", net.second, sum(hidden) / len(hidden))


def written_out_fast(net, x):
    """By products, `dot`, einsum and transposes, under `jit` and `checkpoint`, over two mapped axes."""
    hidden = jax.checkpoint(lambda rows: jnp.tanh(rows @ net.first.weight.T + net.first.bias[None]))(x)
    mixed = eqx.filter_jit(lambda weight, rows: jnp.einsum("oi,ti->to", weight, rows))(net.second.weight, hidden[:2])
    return (jnp.sum(mixed, axis=0) + jnp.dot(net.second.weight, hidden[2])) / 3


def written_out_slow(net, x, calls):
    hidden = [jnp.tanh(calls.layer("first", net.first, row)) for row in x]
    return sum(calls.layer("second", net.second, row) for row in hidden) / len(hidden)


def scanned_fast(net, x):
    def step(h, row):
        h = jnp.tanh(net.first(jnp.concatenate([row, h])))
        return h, net.second(h)

    return jnp.sum(jax.lax.scan(step, jnp.zeros(3), x)[1], axis=0)


def scanned_slow(net, x, calls):
    h, total = jnp.zeros(3), 0.0
    for row in x:
        h = jnp.tanh(calls.layer("first", net.first, jnp.concatenate([row, h])))
        total = total + calls.layer("second", net.second, h)
    return total


def nested_fast(net, x):
    """A scan in a scan in a `vmap`."""

    def inner(h, row):
        return jnp.tanh(net.first(jnp.concatenate([row, h]))), None

    def outer(h, rows):
        h, _ = jax.lax.scan(inner, h, rows, reverse=True)
        return h, net.second(h)

    each = jax.vmap(lambda rows: jnp.sum(jax.lax.scan(outer, jnp.zeros(3), rows)[1], axis=0))(x)
    return jnp.sum(each, axis=0)


def nested_slow(net, x, calls):
    total = 0.0
    for sequences in x:
        h = jnp.zeros(3)
        for rows in sequences:
            for row in rows[::-1]:
                h = jnp.tanh(calls.layer("first", net.first, jnp.concatenate([row, h])))
            total = total + calls.layer("second", net.second, h)
    return total


def repeated_fast(net, x):
    """One layer mapped over rows, and then applied again in two other places."""
    total = jnp.sum(jnp.tanh(jax.vmap(net.first)(x)), axis=0)
    return net.second(jnp.tanh(net.first(total)) * net.first(jnp.tanh(total)))


def repeated_slow(net, x, calls):
    total = sum(jnp.tanh(calls.layer("first", net.first, row)) for row in x)
    ends = [jnp.tanh(calls.layer("first", net.first, total)), calls.layer("first", net.first, jnp.tanh(total))]
    return calls.layer("second", net.second, ends[0] * ends[1])


def convolved_slow(calls: Calls, name: str, layer, x):
    """A convolution, patch by patch; every group has a name of its own."""
    spatial = layer.num_spatial_dims
    modes = {"ZEROS": "constant", "REFLECT": "reflect", "REPLICATE": "edge", "CIRCULAR": "wrap"}
    padded = jnp.pad(x, [(0, 0), *layer.padding], modes[layer.padding_mode])
    reach = [(size - 1) * step + 1 for size, step in zip(layer.kernel_size, layer.dilation, strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(padded.shape[1:], reach, layer.stride, strict=True)]
    ins, outs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    weights = layer.weight.reshape(layer.groups, outs, -1)
    bias = None if layer.bias is None else layer.bias.reshape(layer.groups, outs)
    results = []
    for position in np.ndindex(*counts):
        corner = [p * s for p, s in zip(position, layer.stride, strict=True)]
        window = tuple(slice(c, c + r, d) for c, r, d in zip(corner, reach, layer.dilation, strict=True))
        patch = padded[(slice(None), *window)]
        parts = []
        for group in range(layer.groups):
            row = patch[group * ins : (group + 1) * ins].reshape(-1)
            if layer.groups == 1:
                parts.append(calls(name, weights[group], row, None if bias is None else bias[group]))
            else:  # the bias of groups is not part of their products
                parts.append(calls(f"{name}{group}", weights[group], row) + (0.0 if bias is None else bias[group]))
        results.append(jnp.concatenate(parts))
    return jnp.stack(results, axis=1).reshape(layer.out_channels, *counts), spatial


def convolutional(name: str, shape: tuple[int, ...], *arguments, mapped: bool = False, **options) -> NetworkCase:
    """A convolution, its mean over all places after tanh, and a linear layer."""
    groups, outs = options.get("groups", 1), arguments[2]

    def one(net, x):
        return jnp.mean(jnp.tanh(net.first(x)).reshape(outs, -1), axis=1)

    def fast(net, x):
        return net.second(jnp.sum(jax.vmap(partial(one, net))(x), axis=0) if mapped else one(net, x))

    def slow(net, x, calls):
        images = x if mapped else [x]
        each = [jnp.tanh(convolved_slow(calls, "first", net.first, image)[0]).reshape(outs, -1) for image in images]
        return calls.layer("second", net.second, sum(jnp.mean(one, axis=1) for one in each))

    firsts = ("first",) if groups == 1 else tuple(f"first{group}" for group in range(groups))
    make = partial(Pair, partial(eqx.nn.Conv, *arguments, **options), Linear(outs, 2))
    return NetworkCase(name, make, fast, slow, shape, (*firsts, "second"))


ATTENTION = partial(Pair, partial(eqx.nn.MultiheadAttention, 2, 4, use_query_bias=True), Linear(4, 2))


def attention_slow(net, x, calls):
    layer = net.first
    projected = {
        name: [calls.layer(name, getattr(layer, name), row).reshape(2, 2) for row in x]
        for name in ("query_proj", "key_proj", "value_proj")
    }
    outputs = []
    for query in projected["query_proj"]:
        heads = []
        for head in range(2):
            scores = jnp.stack([query[head] @ key[head] for key in projected["key_proj"]]) / jnp.sqrt(2.0)
            weights = jax.nn.softmax(scores)
            heads.append(sum(w * v[head] for w, v in zip(weights, projected["value_proj"], strict=True)))
        outputs.append(calls.layer("output_proj", layer.output_proj, jnp.concatenate(heads)))
    return calls.layer("second", net.second, sum(outputs) / len(outputs))


def gru_slow(net, x, calls):
    cell, h = net.first, jnp.zeros(2)
    for row in x:
        inputs = jnp.split(calls("ih", cell.weight_ih, row) + cell.bias, 3)
        hidden = jnp.split(calls("hh", cell.weight_hh, h), 3)
        reset, update = jax.nn.sigmoid(inputs[0] + hidden[0]), jax.nn.sigmoid(inputs[1] + hidden[1])
        new = jnp.tanh(inputs[2] + reset * (hidden[2] + cell.bias_n))
        h = new + update * (h - new)
    return calls.layer("second", net.second, h)


def embedded_slow(net, x, calls):
    rows = [calls("first", net.first.weight.T, jax.nn.one_hot(token, 5)) for token in x]
    return calls.layer("second", net.second, jnp.tanh(sum(rows)))


EMBEDDING = partial(Pair, partial(eqx.nn.Embedding, 5, 3), Linear(3, 2))
LOOKUPS = {
    "embedding": lambda net, x: jax.vmap(net.first)(x),
    "embedding by an array of indices": lambda net, x: net.first.weight[x],
    "embedding by take": lambda net, x: jnp.take(net.first.weight, x, axis=0),
    "embedding one at a time": lambda net, x: jnp.stack([net.first(x[0]), net.first(x[1]), net.first(x[2])]),
    "embedding by one-hot rows": lambda net, x: jax.nn.one_hot(x, 5) @ net.first.weight,
    "embedding by indices and one-hot rows": lambda net, x: jnp.concatenate(
        [net.first.weight[x[:2]], jax.nn.one_hot(x[2:], 5) @ net.first.weight]
    ),
}


def embedding(name: str) -> NetworkCase:
    def fast(net, x):
        return net.second(jnp.tanh(jnp.sum(LOOKUPS[name](net, x), axis=0)))

    return NetworkCase(name, EMBEDDING, fast, embedded_slow, (3,), ("first", "second"), ("first",), tokens=5)


PAIR = ("first", "second")
RECURRENT = partial(Pair, Linear(5, 3), Linear(3, 2))
NETWORKS = [
    NetworkCase("vmap", TOKENS, lambda net, x: net.second(jnp.mean(jnp.tanh(jax.vmap(net.first)(x)), axis=0)),
                tokens_slow, (3, 3), PAIR),
    NetworkCase("scan", RECURRENT, scanned_fast, scanned_slow, (3, 2), PAIR),
    convolutional("conv2d", (2, 4, 3), 2, 2, 3, 2, stride=(2, 1), padding=((1, 0), (0, 1)), dilation=(1, 2)),
    NetworkCase("attention", ATTENTION, lambda net, x: net.second(jnp.mean(net.first(x, x, x), axis=0)),
                attention_slow, (3, 4),
                ("query_proj", "key_proj", "value_proj", "output_proj", "second")),
    NetworkCase("repeated", partial(Pair, Linear(3, 3), Linear(3, 2)), repeated_fast, repeated_slow, (2, 3), PAIR),
    convolutional("conv2d in groups", (4, 3, 3), 2, 4, 4, 2, groups=2),
    NetworkCase("gru", partial(Pair, partial(eqx.nn.GRUCell, 3, 2), Linear(2, 2)), 
                lambda net, x: net.second(jax.lax.scan(lambda h, row: (net.first(row, h), None), jnp.zeros(2), x)[0]),
                gru_slow, (3, 3),
                ("ih", "hh", "second")),
    embedding("embedding"),
    NetworkCase("products, einsum, jit and checkpoint", TOKENS, written_out_fast, written_out_slow, (3, 3), PAIR),
    NetworkCase("a scan in a scan in a vmap", RECURRENT, nested_fast, nested_slow, (2, 2, 2, 2), PAIR),
    convolutional("conv1d under vmap", (3, 2, 5), 1, 2, 3, 2, padding=1, mapped=True),
    convolutional("conv1d depthwise without bias", (3, 5), 1, 3, 3, 3, groups=3, use_bias=False),
    convolutional("conv2d, circular", (1, 3, 3), 2, 1, 2, 2, padding=1, padding_mode="CIRCULAR"),
    convolutional("conv3d", (1, 2, 3, 2), 3, 1, 2, 2, padding=((0, 1), (0, 0), (0, 0)), stride=(1, 2, 1)),
    *map(embedding, [name for name in LOOKUPS if name != "embedding"]),
]  # fmt: skip
