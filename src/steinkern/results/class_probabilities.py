"""Probabilities of classes over the particles, and their uncertainty."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float, Integer

from ..core.reprs import ShortRepr


@dataclass(frozen=True, repr=False)
class ClassProbabilities(ShortRepr):
    """The probability of every class at every particle and row, and what follows from it.

    The uncertainty about a label has two parts. The entropy of the mean probabilities is all of it; the mean entropy of
    the particles' probabilities is what remains if the parameters are known (noisy labels); the difference, the mutual
    information of label and parameters, is what more data would remove. All are in nats.
    """

    values: Float[Array, "n rows ... classes"]
    """Axes (particle, row, …, class); with `Bernoulli()` the classes are 0 and 1."""

    @property
    def mean(self) -> Float[Array, "rows ... classes"]:
        """The predictive probabilities: the mean over the particles."""
        return jnp.mean(self.values, axis=0)

    @property
    def most_probable(self) -> Integer[Array, "rows ..."]:
        """The class of the largest predictive probability."""
        return jnp.argmax(self.mean, axis=-1)

    @property
    def confidence(self) -> Float[Array, "rows ..."]:
        """The largest predictive probability."""
        return jnp.max(self.mean, axis=-1)

    @property
    def entropy(self) -> Float[Array, "rows ..."]:
        """The entropy of the predictive probabilities: the whole uncertainty about the label."""
        return jnp.sum(entr(self.mean), axis=-1)

    @property
    def expected_entropy(self) -> Float[Array, "rows ..."]:
        """The mean over the particles of the entropy: the uncertainty that remains if the parameters are known."""
        return jnp.mean(jnp.sum(entr(self.values), axis=-1), axis=0)

    @property
    def mutual_information(self) -> Float[Array, "rows ..."]:
        """`entropy` − `expected_entropy` ≥ 0: the uncertainty about the label that is due to the parameters."""
        return jnp.maximum(self.entropy - self.expected_entropy, 0)
