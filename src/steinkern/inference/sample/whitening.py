"""Metrics as NumPy arrays, for the arithmetic of `sample` outside of its compiled programs."""

from typing import NamedTuple

import jax
import numpy as np

from ...linalg.metrics import AbstractMetric, DenseMetric, DiagonalMetric


class Whitening(NamedTuple):
    """A metric Q = RᵀR as NumPy arrays in double precision; d×d matrices, or the diagonals of diagonal ones."""

    root: np.ndarray
    """R."""
    inverse_root: np.ndarray
    """R⁻¹."""

    @classmethod
    def of_precision(cls, precision: np.ndarray) -> "Whitening":
        """The metric of a precision matrix, or of the diagonal of one; NaN where it is not positive definite."""
        if precision.ndim == 1:
            root = np.sqrt(precision)
            return cls(root, 1 / root)
        try:
            lower = np.linalg.cholesky(precision)
        except np.linalg.LinAlgError:
            missing = np.full_like(precision, np.nan)
            return cls(missing, missing)
        return cls(lower.T, np.linalg.inv(lower).T)

    def metric(self) -> AbstractMetric:
        """The same metric, for compiled programs."""
        if self.root.ndim == 1:
            return DiagonalMetric(jax.device_put(self.root))
        arrays = (self.root, self.inverse_root, np.asarray(self.log_determinant()))
        return DenseMetric(*map(jax.device_put, arrays))

    def whiten(self, points: np.ndarray) -> np.ndarray:
        """R x, along the last axis."""
        return self.root * points if self.root.ndim == 1 else points @ self.root.T

    def unwhiten(self, points: np.ndarray) -> np.ndarray:
        """R⁻¹ u, along the last axis."""
        return self.inverse_root * points if self.root.ndim == 1 else points @ self.inverse_root.T

    def pull_scores(self, scores: np.ndarray) -> np.ndarray:
        """R⁻ᵀ s, along the last axis: the scores of the whitened variable."""
        return self.inverse_root * scores if self.root.ndim == 1 else scores @ self.inverse_root

    def log_determinant(self) -> float:
        """Log det Q."""
        log_det = np.sum(np.log(self.root)) if self.root.ndim == 1 else np.linalg.slogdet(self.root)[1]
        return 2 * float(log_det)

    def steps(self) -> np.ndarray:
        """(d, d): row a is the step in x that corresponds to a unit step along u_a."""
        return np.diag(self.inverse_root) if self.root.ndim == 1 else self.inverse_root.T


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of a symmetric matrix; NaN for a matrix that is not finite, where NumPy raises."""
    if not np.isfinite(matrix).all():
        return np.full(len(matrix), np.nan), np.full_like(matrix, np.nan)
    values, vectors = np.linalg.eigh(matrix)
    return values, vectors
