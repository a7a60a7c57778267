"""The factors of KFAC beside those of kfac-jax, on one network with a convolution and two dense layers.

Needs kfac-jax 0.0.8 in an environment of its own with jax < 0.11, and here jax 0.9.2. It is of an earlier JAX, so
`for_this_jax` replaces one of its functions, which evaluates an equation of a traced function. Both compute the exact
Fisher information of the logits from the same weights and images, in float64. kfac-jax has means over examples and
places in both factors, and for a convolution the number of places as a scale beside them; here it is in the factor of
the outputs, which is a sum over examples. So factors are compared over their traces, and the scale of the product by
the product of both traces. The error of a factor is the largest difference over the largest entry.
"""

from argparse import Namespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

from .bench import Answer, Benchmark, Row

EXAMPLES, SIDE, CHANNELS, OUT, KERNEL, HIDDEN, CLASSES = 12, 8, 2, 3, 3, 7, 5
LAYERS = ("convolution", "hidden", "head")


class Network(eqx.Module):
    """A convolution and two dense layers."""

    convolution: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __call__(self, image: Any) -> Any:
        x = jnp.tanh(self.convolution(image)).reshape(-1)
        return self.head(jnp.tanh(self.hidden(x)))


def ours(network: Network, images: Any, labels: Any) -> dict[str, tuple[Any, Any]]:
    """By layer the factors of the inputs, the bias last, and of the outputs."""
    target = sk.Posterior(
        lambda network: jnp.zeros(()),
        lambda network, example: sk.Categorical().log_prob(network(example[0]), example[1]),
        len(labels),
    ).bind(network)
    point = target.space.unconstrain(network)
    blocks = sk.KFAC(lambda network, example: network(example[0]), sk.Categorical())(target, point, (images, labels))
    return {
        name: (np.asarray(part.right.matrix), np.asarray(part.left.matrix))
        for name, part in zip(LAYERS, blocks.parts, strict=True)
    }


def for_this_jax() -> None:
    """`Primitive.get_bind_params` returned two values once."""
    from kfac_jax._src import tag_graph_matcher

    def evaluate(equation: Any, values: list[Any]) -> list[Any]:
        output = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
        return output if isinstance(output, list) else [output]

    tag_graph_matcher.eval_jaxpr_eqn = evaluate


def theirs(network: Network, images: Any, labels: Any) -> dict[str, tuple[Any, Any]]:
    """The same from kfac-jax, in the order of Equinox's coordinates."""
    import kfac_jax

    for_this_jax()
    parameters = {
        "convolution": (network.convolution.weight.transpose(2, 3, 1, 0), network.convolution.bias[:, 0, 0]),
        "hidden": (network.hidden.weight.T, network.hidden.bias),
        "head": (network.head.weight.T, network.head.bias),
    }

    def loss(parameters: Any, batch: Any) -> Any:
        x, labels = batch
        weight, bias = parameters["convolution"]
        x = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
        # Equinox has channels first.
        x = jnp.tanh(x).transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
        weight, bias = parameters["hidden"]
        x = jnp.tanh(x @ weight + bias)
        weight, bias = parameters["head"]
        logits = x @ weight + bias
        kfac_jax.register_softmax_cross_entropy_loss(logits, labels)
        return jnp.sum(logits)  # only the registered loss counts

    batch = (images.transpose(0, 2, 3, 1), labels)
    estimator = kfac_jax.BlockDiagonalCurvature(loss, default_estimation_mode="fisher_exact")
    state = estimator.init(jr.key(0), (parameters, batch), None, None)
    state = estimator.update_curvature_matrix_estimate(
        state, 0.0, 1.0, 0.0, len(labels), jr.key(1), (parameters, batch)
    )
    factors_of = {}
    for block, state_of_block in zip(estimator.blocks, state.blocks_states, strict=True):
        inputs, outputs = (np.asarray(factor.value) for factor in state_of_block.factors)
        outputs = outputs * float(block.fixed_scale())
        sizes = {CHANNELS * KERNEL**2 + 1: "convolution", HIDDEN + 1: "head"}
        name = sizes.get(len(inputs), "hidden")
        if name == "convolution":  # from (rows, columns, channels) to (channels, rows, columns)
            order = np.arange(CHANNELS * KERNEL**2).reshape(KERNEL, KERNEL, CHANNELS).transpose(2, 0, 1).reshape(-1)
            order = np.append(order, CHANNELS * KERNEL**2)
            inputs = inputs[np.ix_(order, order)]
        factors_of[name] = (inputs, outputs)
    return factors_of


def run(case: str, method: str, options: Namespace) -> Answer:
    """The errors of both factors of a layer, and of the scale of their product."""
    keys = jr.split(jr.key(0), 5)
    features = OUT * (SIDE - KERNEL + 1) ** 2
    network = Network(
        eqx.nn.Conv2d(CHANNELS, OUT, KERNEL, key=keys[0]),
        eqx.nn.Linear(features, HIDDEN, key=keys[1]),
        eqx.nn.Linear(HIDDEN, CLASSES, key=keys[2]),
    )
    images = jr.normal(keys[3], (EXAMPLES, CHANNELS, SIDE, SIDE))
    labels = jr.randint(keys[4], (EXAMPLES,), 0, CLASSES)
    here, there = ours(network, images, labels), theirs(network, images, labels)
    rows = []
    for metric, mine, other in zip(("inputs_error", "outputs_error"), here[case], there[case], strict=True):
        mine, other = mine / np.trace(mine), other / np.trace(other)
        rows.append(Row(case, method, metric, float(np.abs(mine - other).max() / np.abs(mine).max())))
    scales = [np.trace(factors[case][0]) * np.trace(factors[case][1]) for factors in (here, there)]
    error = abs(scales[1] * EXAMPLES / scales[0] - 1)  # a sum over examples here, a mean there
    return Answer([*rows, Row(case, method, "scale_error", float(error))])


BENCHMARKS = {"kfac-peer": Benchmark([(name, "kfac-jax") for name in LAYERS], run, precision="float64")}
