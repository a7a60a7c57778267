"""Scores of predictive probabilities, and of uncertainty as a sign of images of another kind."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from sklearn.metrics import roc_auc_score

from ..tables import rounded

CALIBRATION_BINS, ENTROPY_BINS = 15, 30


@dataclass(frozen=True)
class Prediction:
    """What the particles say about rows: their mean probabilities, and the mean of their own entropies in nats."""

    probabilities: Float[np.ndarray, "rows classes"]
    expected_entropy: Float[np.ndarray, " rows"]

    @property
    def entropy(self) -> Float[np.ndarray, " rows"]:
        """Of the mean probabilities: the whole uncertainty."""
        p = self.probabilities.astype(np.float64)
        return -np.sum(p * np.log(np.maximum(p, np.finfo(np.float64).tiny)), axis=1)

    @property
    def mutual_information(self) -> Float[np.ndarray, " rows"]:
        """Of label and particle: the uncertainty that the particles' disagreement makes."""
        return np.maximum(self.entropy - self.expected_entropy.astype(np.float64), 0)


def negative_log_likelihood(prediction: Prediction, labels: Integer[np.ndarray, " rows"]) -> float:
    """The mean over rows of −log p(label), in nats."""
    p = prediction.probabilities.astype(np.float64)[np.arange(len(labels)), labels]
    return float(-np.mean(np.log(np.maximum(p, np.finfo(np.float32).tiny))))


def auroc(inside: Float[np.ndarray, " rows"], outside: Float[np.ndarray, " others"]) -> float:
    """The probability that a value from outside is the larger one, equal ones counted half."""
    return roc_auc_score(np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate([inside, outside]))


def score(inside: Prediction, labels: Integer[np.ndarray, " rows"], outside: Prediction) -> dict[str, Any]:
    """All scores of a run, and the counts that its figures are made of, as JSON.

    Args:
        inside: of the test rows.
        labels: theirs.
        outside: of images of another kind.
    """
    p = inside.probabilities.astype(np.float64)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    sums = [np.bincount(bins, weights, CALIBRATION_BINS) for weights in (confidence, right)]
    gaps = np.abs(sums[0] - sums[1])
    truth = np.eye(p.shape[1])[labels]
    most = np.log(p.shape[1])
    return {
        "accuracy": rounded(100 * right.mean()),
        "nll": rounded(negative_log_likelihood(inside, labels)),
        "ece": rounded(100 * gaps.sum() / len(labels)),
        "brier": rounded(np.mean(np.sum((p - truth) ** 2, axis=1))),
        "auroc_entropy": rounded(auroc(inside.entropy, outside.entropy)),
        "auroc_information": rounded(auroc(inside.mutual_information, outside.mutual_information)),
        "calibration": [np.bincount(bins, minlength=CALIBRATION_BINS).tolist(), *rounded(sums)],
        "entropies": [
            np.histogram(np.clip(part.entropy, 0, most), ENTROPY_BINS, (0, most))[0].tolist()
            for part in (inside, outside)
        ],
    }
