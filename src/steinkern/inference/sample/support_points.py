"""Support points of draws, and particles with given moments; all in whitened coordinates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled
from ...core.types import Points
from .whitening import eigh

_MAX_DRAWS = 3000  # whose support points are computed
MAX_SUPPORT_POINTS = 500
"""The most particles that are support points; more particles than these are plain draws."""
_ITERATIONS = 60


def represent(random: np.random.Generator, draws: np.ndarray, num_particles: int) -> np.ndarray:
    """The support points of the draws; for many particles a random choice of the draws."""
    sample = draws[random.choice(len(draws), min(_MAX_DRAWS, len(draws)), replace=False)]
    if num_particles > min(MAX_SUPPORT_POINTS, len(sample) // 2):
        return draws[random.choice(len(draws), num_particles, replace=num_particles > len(draws))]
    first = sample[:num_particles] + 1e-3 * random.standard_normal((num_particles, draws.shape[1]))
    return np.asarray(support_points(jax.device_put(first), jax.device_put(sample)), np.float64)


@compiled
def support_points(first: Points, draws: Float[Array, "m d"]) -> Points:
    """The support points of the draws, by iterations from the initial points `first`.

    Support points minimize the energy distance to the draws, 2 E‖x − y‖ − E‖x − x'‖, by the fixed-point iteration of
    Mak and Joseph (2018), which has no step size and decreases the distance in every iteration.
    """
    n, m = len(first), len(draws)

    def iterate(_: Any, particles: Points) -> Points:
        attraction = 1 / _distances(particles, draws)
        among = jnp.where(jnp.eye(n, dtype=bool), 0, 1 / _distances(particles, particles))
        repulsion = jnp.sum(among, axis=1)[:, None] * particles - among @ particles
        return (attraction @ draws + m / n * repulsion) / jnp.sum(attraction, axis=1)[:, None]

    return jax.lax.fori_loop(0, _ITERATIONS, iterate, first)


def with_moments(particles: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """An affine map of the particles to this mean and covariance, by the symmetric roots of both covariances.

    n particles span n − 1 directions. Where n − 1 < 0.9 d, only the variances of the coordinates are matched; where it
    is between 0.9 d and d, the covariance is matched in the directions that the particles span.
    """
    n, d = particles.shape
    centered = particles - particles.mean(axis=0)
    if n - 1 < 0.9 * d:
        sd, target_sd = centered.std(axis=0), np.sqrt(np.diagonal(covariance))
        return mean + centered * (target_sd / np.where(sd > 0, sd, 1))
    values, vectors = eigh(centered.T @ centered / n)
    inverse_root = (vectors * np.where(values > 1e-6 * values[-1], values, np.inf) ** -0.5) @ vectors.T
    variances, axes = eigh(covariance)
    root = (axes * np.sqrt(np.maximum(variances, 0))) @ axes.T
    return mean + centered @ inverse_root @ root


def nearest_draws(particles: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The index of the draw nearest to each particle."""
    return np.array([np.argmin(np.sum((draws - particle) ** 2, axis=1)) for particle in particles])


def _distances(x: Points, y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """All distances, at least the rounding of their squares, so that no weight 1/distance is huge."""
    lengths = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None]
    rounding = 1e-12 + jnp.finfo(x.dtype).eps * lengths
    return jnp.sqrt(jnp.maximum(lengths - 2 * x @ y.T, rounding))
