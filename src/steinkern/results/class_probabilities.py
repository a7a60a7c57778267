"""Probabilities of classes over the particles, their uncertainty, and their calibration."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr
from jaxtyping import Array, Float, Integer

from ..core.arrays import as_labels
from ..core.reprs import ShortRepr
from ..core.types import check_count


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

    def calibration(self, labels: Any, num_bins: int = 15) -> "ClassCalibration":
        """How often the most probable class is right, by its probability.

        Args:
            labels: the class of every row, a whole number from 0 on.
            num_bins: the number of bins of equal width between 0 and 1.
        """
        check_count("num_bins", num_bins)
        mean = np.asarray(self.mean, np.float64)
        given = np.asarray(as_labels(labels))
        shape = mean.shape[:-1]
        if given.shape not in (shape, (*shape, 1)):
            raise ValueError(f"`labels` must hold one class for each row, shape {shape}, got {given.shape}.")
        known = np.isin(given, np.arange(mean.shape[-1]))
        if not known.all():
            raise ValueError(
                f"`labels` must be classes 0 … {mean.shape[-1] - 1}, got {given[~known].flat[0]}. Count them from 0."
            )
        confidence = mean.max(axis=-1).ravel()
        right = (mean.argmax(axis=-1) == given.reshape(shape)).ravel()
        return _bin(confidence, right, num_bins)


@dataclass(frozen=True, eq=False, repr=False)
class ClassCalibration(ShortRepr):
    """The accuracy of predicted classes by their confidence, in bins of equal width.

    Predictions are calibrated where accuracy equals confidence: of those made with probability 0.8, 80 percent are
    right. `steinkern.plot.reliability` draws it.
    """

    edges: Float[np.ndarray, " edges"]
    """The ends of the bins."""
    count: Integer[np.ndarray, " bins"]
    """The number of predictions in every bin."""
    confidence: Float[np.ndarray, " bins"]
    """The mean probability of the predicted class; NaN in an empty bin."""
    accuracy: Float[np.ndarray, " bins"]
    """The share of right predictions; NaN in an empty bin."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over predictions of |accuracy − confidence| in their bin.

        The noise of the accuracies makes it positive for calibrated predictions too, by up to about
        0.4 √(filled bins / predictions), so compare it between methods on the same labels.
        """
        filled = self.count > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.sum(gaps * self.count[filled]) / np.sum(self.count))

    @property
    def largest_error(self) -> float:
        """The largest |accuracy − confidence| of a bin."""
        return float(np.nanmax(np.abs(self.accuracy - self.confidence)))


def _bin(confidence: np.ndarray, right: np.ndarray, num_bins: int) -> ClassCalibration:
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    count = np.bincount(bins, minlength=num_bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 in an empty bin
        means = [np.bincount(bins, weights, num_bins) / count for weights in (confidence, right.astype(np.float64))]
    return ClassCalibration(np.linspace(0, 1, num_bins + 1), count, *means)
