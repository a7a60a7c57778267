"""Likelihoods of a model's output, with their exact (expected) Fisher information in that output."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..core.arrays import as_numpy
from ..core.reprs import OneLine
from ..core.types import Key, Matrix, Scalar, as_number, cast_like, check_positive, is_concrete


class AbstractLikelihood(OneLine):
    """p(label | output) for one example, where the output is a vector that a model computes."""

    @abc.abstractmethod
    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        """Log p(label | output)."""

    @abc.abstractmethod
    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        """−E_y ∇² log p(y | output), k×k, the expectation over labels y given the output."""

    def fisher_root(self, output: Float[Array, " k"]) -> Float[Array, "k m"]:
        """A matrix S with SSᵀ = `fisher(output)`; m is k or less. From eigenvalues where there is no formula."""
        values, vectors = jnp.linalg.eigh(self.fisher(output))
        return vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]

    def class_probabilities(self, output: Float[Array, " k"]) -> Float[Array, "... c"]:
        """The probability of every class given the output, for likelihoods of classes; `ValueError` for others."""
        raise ValueError(
            f"`likelihood` must be one of classes, `steinkern.Categorical()` or `steinkern.Bernoulli()`, got {self!r}."
        )

    def sample(self, key: Key, output: Float[Array, " k"]) -> Array:
        """A random label from p(· | output), for the sampled Fisher information."""
        raise ValueError(f"`{type(self).__name__}` cannot draw labels: define its method `sample(key, output)`.")

    def check(self, labels: Any, num_outputs: int | None = None) -> None:
        """Raise `ValueError` where a label is outside the likelihood's sample space.

        A compiled log density cannot raise: there the log-probability of such a label and its gradient are NaN, and
        `fit` reports them.

        Args:
            labels: an array with a leading axis of examples; traced arrays are not checked.
            num_outputs: the number of the model's outputs, which `Categorical` checks against.
        """
        return None


class _IndependentLabels(AbstractLikelihood):
    """A likelihood of independent real labels: they are finite, and its Fisher information is diagonal."""

    def check(self, labels: Any, num_outputs: int | None = None) -> None:
        _check_labels(labels, np.isfinite, "finite real numbers", "Leave out rows without one.")

    def fisher_root(self, output: Float[Array, " k"]) -> Matrix:
        return jnp.sqrt(self.fisher(output))


class Bernoulli(_IndependentLabels):
    """Independent labels 0 or 1, each with an output as its logit."""

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        label = _real(label, output).reshape(output.shape)
        sign = jnp.where((label == 0) | (label == 1), 2 * label - 1, jnp.nan)
        return jnp.sum(jax.nn.log_sigmoid(sign * output))

    def check(self, labels: Any, num_outputs: int | None = None) -> None:
        hint = "Write labels of −1 and +1 as `(labels + 1) / 2`."
        _check_labels(labels, lambda values: np.isin(values, (0, 1)), "0 or 1", hint)

    def class_probabilities(self, output: Float[Array, " k"]) -> Float[Array, "... c"]:
        """The probabilities of the labels 0 and 1: shape (2,) for one output, (k, 2) for several."""
        both = jnp.stack([jax.nn.sigmoid(-output), jax.nn.sigmoid(output)], axis=-1)
        return both[0] if output.shape[0] == 1 else both

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        probability = jax.nn.sigmoid(output)
        return jnp.diag(probability * (1 - probability))

    def sample(self, key: Key, output: Float[Array, " k"]) -> Array:
        return jr.bernoulli(key, jax.nn.sigmoid(output)).astype(output.dtype)


class Categorical(AbstractLikelihood):
    """Labels 0 … k−1; the outputs are logits (softmax regression)."""

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        if jnp.size(label) != 1:
            raise ValueError(
                f"`label` must be one class, a whole number, got shape {jnp.shape(label)}. For one-hot labels take "
                "`argmax(axis=-1)`."
            )
        label = jnp.asarray(label).reshape(())
        if label.dtype.itemsize < 4:  # a narrow dtype cannot hold many classes
            label = label.astype(jnp.float32 if jnp.issubdtype(label.dtype, jnp.floating) else jnp.int32)
        # Selects by comparison: an index out of range would be clamped to another class under `vmap`.
        chosen = jnp.arange(output.shape[0]).astype(label.dtype) == label
        known = jnp.where(jnp.any(chosen), jnp.ones((), output.dtype), jnp.nan)
        return jnp.sum(jnp.where(chosen | jnp.isnan(known), jax.nn.log_softmax(known * output), 0))

    def check(self, labels: Any, num_outputs: int | None = None) -> None:
        def is_class(values: np.ndarray) -> np.ndarray:
            return (values >= 0) & (values == np.round(values)) & (num_outputs is None or values < num_outputs)

        last = "k − 1" if num_outputs is None else str(num_outputs - 1)
        hint = "Count them from 0, and give the model an output for each."
        _check_labels(labels, is_class, f"classes 0 … {last}", hint)

    def class_probabilities(self, output: Float[Array, " k"]) -> Float[Array, "... c"]:
        """The probabilities of the classes 0 … k−1."""
        return jax.nn.softmax(output)

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        probability = jax.nn.softmax(output)
        return jnp.diag(probability) - probability[:, None] * probability[None, :]

    def sample(self, key: Key, output: Float[Array, " k"]) -> Array:
        return jr.categorical(key, output)

    def fisher_root(self, output: Float[Array, " k"]) -> Matrix:
        probability = jax.nn.softmax(output)
        root = jnp.sqrt(probability)
        return jnp.diag(root) - probability[:, None] * root[None, :]


class Gaussian(_IndependentLabels):
    """Labels with independent normal noise; the outputs are the means. One variance, or one for each output."""

    variance: Any = eqx.field(default=1.0, converter=as_number)

    def __check_init__(self) -> None:
        check_positive("variance", self.variance)

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        variance = cast_like(self.variance, output)
        residual = _real(label, output).reshape(output.shape) - output
        return -0.5 * jnp.sum(residual**2 / variance + jnp.log(2 * jnp.pi * variance))

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        return jnp.diag(1 / jnp.broadcast_to(cast_like(self.variance, output), output.shape))

    def sample(self, key: Key, output: Float[Array, " k"]) -> Array:
        return output + jnp.sqrt(cast_like(self.variance, output)) * jr.normal(key, output.shape, output.dtype)


class GaussianNoise(_IndependentLabels):
    """Labels with independent normal noise of unknown variance; the outputs are m means, then the log variance.

    A model that appends a parameter to its prediction infers the noise together with its other parameters. The Fisher
    information is diagonal: 1/variance for each mean and m/2 for the log variance.
    """

    def log_prob(self, output: Float[Array, " k"], label: Array) -> Scalar:
        mean, log_variance = output[:-1], output[-1]
        residual = _real(label, output).reshape(mean.shape) - mean
        return -0.5 * jnp.sum(residual**2 * jnp.exp(-log_variance) + log_variance + jnp.log(2 * jnp.pi))

    def fisher(self, output: Float[Array, " k"]) -> Matrix:
        means = output.shape[0] - 1
        precision = jnp.full((means,), 1, output.dtype) * jnp.exp(-output[-1])
        return jnp.diag(jnp.concatenate([precision, jnp.full((1,), means / 2, output.dtype)]))

    def sample(self, key: Key, output: Float[Array, " k"]) -> Array:
        mean = output[:-1]
        return mean + jnp.exp(output[-1] / 2) * jr.normal(key, mean.shape, output.dtype)


def _real(label: Any, output: Array) -> Array:
    """A label in the precision of the output; complex labels are refused."""
    if jnp.iscomplexobj(label):
        raise ValueError(f"`label` must be a real number, got {jnp.result_type(label)}.")
    return cast_like(label, output)


def _check_labels(labels: Any, is_valid: Callable[[np.ndarray], Any], expected: str, hint: str) -> None:
    """Raise, with the first invalid labels, unless all are real and valid; traced labels pass."""
    if is_concrete(labels):
        values = as_numpy("labels", labels)
        valid = is_valid(values.real) & (not np.iscomplexobj(values))
        if not np.all(valid):
            shown = ", ".join(f"{value:g}" for value in np.unique(values[~valid].real.astype(np.float64))[:3])
            raise ValueError(f"`labels` must be {expected}, got {shown} among {values.size}. {hint}")
