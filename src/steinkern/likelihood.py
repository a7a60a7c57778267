"""Likelihoods of a model's output, with their exact (expected) Fisher information in that output."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._types import Matrix, Scalar, as_number, check_positive, like


class AbstractLikelihood(eqx.Module):
    """p(y | output) for one example, where the output is a vector that a model computes."""

    @abc.abstractmethod
    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        """Log p(label | output)."""

    @abc.abstractmethod
    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        """−E_y ∇² log p(y | output), k×k; it does not depend on the observed label."""


class Bernoulli(AbstractLikelihood):
    """Labels 0 or 1; each output is a logit. One logit a label."""

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        sign = 2 * like(label, output).reshape(output.shape) - 1
        return jnp.sum(jax.nn.log_sigmoid(sign * output))

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        probability = jax.nn.sigmoid(output)
        return jnp.diag(probability * (1 - probability))


class Categorical(AbstractLikelihood):
    """Labels 0 … k−1; the outputs are logits (softmax regression)."""

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        # A label that is no class has no probability: NaN, rather than the nearest class's.
        return jax.nn.log_softmax(output).at[label].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        probability = jax.nn.softmax(output)
        return jnp.diag(probability) - probability[:, None] * probability[None, :]


class Gaussian(AbstractLikelihood):
    """Labels with independent normal noise; the outputs are the means. One variance, or one an output."""

    variance: Any = eqx.field(default=1.0, converter=as_number)

    def __check_init__(self) -> None:
        if hasattr(self.variance, "dtype"):
            check_positive("variance", self.variance)

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        variance = like(self.variance, output)
        residual = like(label, output).reshape(output.shape) - output
        return -0.5 * jnp.sum(residual**2 / variance + jnp.log(2 * jnp.pi * variance))

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        return jnp.diag(1 / jnp.broadcast_to(like(self.variance, output), output.shape))


class GaussianNoise(AbstractLikelihood):
    """Labels with independent normal noise of unknown variance; the outputs are m means and, last, its logarithm.

    A model that appends a parameter of its own to its prediction so infers the noise with everything else. Means and
    variance are orthogonal: the Fisher information is diagonal, 1/variance for each mean and m/2 for the logarithm.
    """

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        mean, log_variance = output[:-1], output[-1]
        residual = like(label, output).reshape(mean.shape) - mean
        return -0.5 * jnp.sum(residual**2 * jnp.exp(-log_variance) + log_variance + jnp.log(2 * jnp.pi))

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        means = output.shape[0] - 1
        precision = jnp.full((means,), 1, output.dtype) * jnp.exp(-output[-1])
        return jnp.diag(jnp.concatenate([precision, jnp.full((1,), means / 2, output.dtype)]))
