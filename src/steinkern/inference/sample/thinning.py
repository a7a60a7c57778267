"""Draws that represent all draws: the choice of the particles."""

import numpy as np

_MAX_CANDIDATES = 1500  # all pairs of them are compared; more particles than two thirds of these are a random choice
_SWEEPS = 3  # over the particles; further exchanges change nothing to speak of


def thin(random: np.random.Generator, whitened: np.ndarray, standardized: np.ndarray, num_particles: int) -> np.ndarray:
    """The indices of the draws that become particles.

    The particles y minimize their energy distance to the draws x plus the errors of means and variances,

        (2 E‖u_x − u_y‖ − E‖u_y − u_y'‖) / E‖u_x − u_x'‖  +  (‖E z_y‖² + ½ ‖E z_y² − 1‖²) / d,

    with u the whitened and z the standardized coordinates, by exchanges of one particle for the best candidate. The
    energy distance is that of support points (Mak and Joseph, 2018), which are averages of draws: of many coordinates,
    or across a bend, such averages are off the posterior, and draws never are.

    Args:
        random: chooses the candidates and the initial particles.
        whitened: (m, d) the draws in coordinates in which their covariance is near the identity.
        standardized: (m, d) the draws minus the estimated means, over the estimated standard deviations.
        num_particles: the number of indices; they differ if there are enough draws.
    """
    candidates = random.choice(len(whitened), min(_MAX_CANDIDATES, len(whitened)), replace=False)
    if num_particles > 2 * len(candidates) // 3:
        return random.choice(len(whitened), num_particles, replace=num_particles > len(whitened))
    distances, squares = _distances(whitened[candidates]), standardized[candidates] ** 2
    distances /= max(distances.mean(), np.finfo(float).tiny)
    features = np.concatenate([standardized[candidates], squares / 2**0.5], axis=1) / squares.shape[1] ** 0.5
    similarity = features @ features.T
    similarity -= distances
    to_all = squares.mean(axis=1) / 2 - distances.mean(axis=1)
    gain = num_particles * to_all - similarity.diagonal() / 2
    rows = random.choice(len(candidates), num_particles, replace=False)
    among, taken = similarity[rows].sum(axis=0), np.zeros(len(candidates))
    taken[rows] = np.inf
    for _ in range(_SWEEPS):
        for i, row in enumerate(rows):
            taken[row] = 0
            rows[i] = np.argmin(among - similarity[row] - gain + taken)
            among += similarity[rows[i]] - similarity[row]
            taken[rows[i]] = np.inf
    return candidates[rows]


def _distances(x: np.ndarray) -> np.ndarray:
    """All distances between the rows."""
    squared, lengths = x @ x.T, np.sum(x**2, axis=1)
    squared *= -2
    squared += lengths
    squared += lengths[:, None]
    return np.sqrt(np.maximum(squared, 0, out=squared), out=squared)
