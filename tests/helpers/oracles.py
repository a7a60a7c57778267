"""What several tests compare with, and how closely."""

import numpy as np
from scipy.spatial.distance import pdist


def assert_close(actual, expected, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """In double precision, up to the rounding of some thousand operations; a NaN equals nothing."""
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=False)


def median_bandwidth(points) -> float:
    """The median of r² over distinct pairs, divided by 2 log(n + 1)."""
    return float(np.median(pdist(points, "sqeuclidean")) / (2 * np.log(len(points) + 1)))
