"""From many draws to a handful of well-placed particles; all in coordinates in which the target is nearly round."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.programs import compiled
from ...core.types import Points
from .whitening import eigh

_DRAWS = 3000  # that particles are placed by
MOST_PLACED = 500
"""More particles than these are draws of the chains as they are."""
_TURNS = 60


def place(random: np.random.Generator, draws: np.ndarray, num_particles: int) -> np.ndarray:
    """Particles that stand for the draws: their support points, or some of the draws where many are wanted."""
    some = draws[random.choice(len(draws), min(_DRAWS, len(draws)), replace=False)]
    if num_particles > min(MOST_PLACED, len(some) // 2):
        return draws[random.choice(len(draws), num_particles, replace=num_particles > len(draws))]
    first = some[:num_particles] + 1e-3 * random.standard_normal((num_particles, draws.shape[1]))
    return np.asarray(support_points(jax.device_put(first), jax.device_put(some)), np.float64)


@compiled
def support_points(first: Points, draws: Float[Array, "m d"]) -> Points:
    """The support points of the draws, from `first` on.

    Support points minimise the energy distance to the draws, 2 E‖x − y‖ − E‖x − x'‖, by the fixed-point iteration of
    Mak and Joseph (2018): no step size, every turn an improvement.
    """
    num_particles = first.shape[0]

    def turn(particles: Points, _: None) -> tuple[Points, None]:
        towards = 1 / _distances(particles, draws)
        apart = 1 / _distances(particles, particles)
        apart = jnp.where(jnp.eye(num_particles, dtype=bool), 0, apart)
        repulsion = jnp.sum(apart, axis=1)[:, None] * particles - apart @ particles
        ratio = draws.shape[0] / num_particles
        return (towards @ draws + ratio * repulsion) / jnp.sum(towards, axis=1)[:, None], None

    return jax.lax.scan(turn, first, None, length=_TURNS)[0]


def with_moments(particles: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The particles moved by the affine map that turns least, so that they have this mean and covariance.

    n particles span n − 1 directions: where these are nearly all, the covariance is that in them; where they are far
    fewer, the variances of the coordinates alone are given.
    """
    n, d = particles.shape
    centred = particles - particles.mean(axis=0)
    if n - 1 < 0.9 * d:
        sd, wanted_sd = centred.std(axis=0), np.sqrt(np.diagonal(covariance))
        return mean + centred * (wanted_sd / np.where(sd > 0, sd, 1))
    values, vectors = eigh(centred.T @ centred / n)
    flat = (vectors * np.where(values > 1e-6 * values[-1], values, np.inf) ** -0.5) @ vectors.T
    wanted, axes = eigh(covariance)
    root = (axes * np.sqrt(np.maximum(wanted, 0))) @ axes.T
    return mean + centred @ flat @ root


def nearest_draws(particles: np.ndarray, wrong: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The particles, with those that are wrong replaced by the draws that are nearest to them; one after the other."""
    right = particles.copy()
    for row in np.flatnonzero(wrong):
        right[row] = draws[np.argmin(np.sum((draws - right[row]) ** 2, axis=1))]
    return right


def _distances(x: Points, y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None] - 2 * x @ y.T
    return jnp.sqrt(jnp.maximum(squares, 1e-12))
