"""Common Bayesian models, as pytrees whose leaves are all parameters."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from steinkern.core.arrays import as_key
from steinkern.core.types import KeyLike, PyTree, Scalar, as_number, cast_like
from steinkern.targets.kfac import KFAC
from steinkern.targets.likelihood import Bernoulli, GaussianNoise
from steinkern.targets.target import Posterior


class RegressionNetwork(eqx.Module):
    """A fully connected ReLU network and the logarithm of its noise variance: one particle of a Bayesian network.

    A call returns the output that `GaussianNoise` expects: the predicted means, then the log variance.
    """

    layers: tuple[eqx.nn.Linear, ...]
    log_variance: Float[Array, "*particles"]

    @classmethod
    def draw(
        cls, key: KeyLike, sizes: Sequence[int], log_variance: float = -1.0, spread: float = 0.3, dtype: Any = None
    ) -> "RegressionNetwork":
        """A network with random initial weights, uniform within ±1/√inputs.

        Args:
            key: PRNG key.
            sizes: the widths, from the inputs over the hidden layers to the outputs, such as `(13, 50, 50, 1)`.
            log_variance: the mean of the initial log variance.
            spread: the standard deviation of the initial log variance. Particles that start with equal noise keep it up
                to rounding under a kernel of that coordinate, which gives them the same velocity.
            dtype: of the parameters; JAX's default where it is `None`.
        """
        noise_key, *keys = jr.split(as_key(key), len(sizes))
        pairs = zip(sizes[:-1], sizes[1:], keys, strict=True)
        layers = tuple(
            eqx.nn.Linear(inputs, outputs, dtype=dtype, key=layer_key) for inputs, outputs, layer_key in pairs
        )
        noise = jr.normal(noise_key, (), layers[0].weight.dtype)
        return cls(layers, cast_like(log_variance, noise) + cast_like(spread, noise) * noise)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return jnp.concatenate([self.layers[-1](x), self.log_variance[None]])


class NetworkPrior(eqx.Module):
    """Independent N(0, 1/precision) weights and biases, and a Gamma(shape, rate) prior on the noise precision.

    It is a density of the log noise variance, Jacobian included.
    """

    precision: Any = eqx.field(default=1.0, converter=as_number)
    shape: Any = eqx.field(default=1.0, converter=as_number)
    rate: Any = eqx.field(default=0.1, converter=as_number)

    def __call__(self, network: RegressionNetwork) -> Scalar:
        noise = network.log_variance
        squares = jax.tree.map(lambda leaf: jnp.sum(leaf**2), jax.tree_util.tree_leaves(network.layers))
        weights = -0.5 * cast_like(self.precision, noise) * jnp.sum(jnp.stack(squares))
        return weights - cast_like(self.shape, noise) * noise - cast_like(self.rate, noise) * jnp.exp(-noise)


def network_output(network: RegressionNetwork, example: PyTree) -> Array:
    """The output for one example (x, y)."""
    return network(example[0])


def network_log_likelihood(network: RegressionNetwork, example: PyTree) -> Scalar:
    """Log p(y | x, network) of one example (x, y)."""
    return GaussianNoise().log_prob(network_output(network, example), example[1])


def network_posterior(num_data: Any, prior: NetworkPrior | None = None) -> Posterior:
    """The posterior of a `RegressionNetwork` given N examples (x, y)."""
    return Posterior(NetworkPrior() if prior is None else prior, network_log_likelihood, num_data)


def network_curvature() -> KFAC:
    """Kronecker-factored Fisher information of a `RegressionNetwork`."""
    return KFAC(network_output, GaussianNoise())


def logit(weights: Float[Array, " p"], example: PyTree) -> Scalar:
    """The logit xᵀw of one example (x, y); an intercept is a column of ones."""
    return jnp.vdot(example[0], weights)


def logistic_log_likelihood(weights: Float[Array, " p"], example: PyTree) -> Scalar:
    """Log p(y | x, w) of one example (x, y), y in {0, 1}."""
    return Bernoulli().log_prob(logit(weights, example)[None], example[1])


def standard_normal(weights: Float[Array, " p"]) -> Scalar:
    """The log density of N(0, I), up to a constant."""
    return -0.5 * jnp.sum(weights**2)


def logistic_posterior(num_data: Any) -> Posterior:
    """Bayesian logistic regression with a standard normal prior, given N examples (x, y)."""
    return Posterior(standard_normal, logistic_log_likelihood, num_data)
