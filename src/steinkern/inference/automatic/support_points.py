"""From many draws to a handful of well-placed particles; all in coordinates in which the target is nearly round."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.programs import compiled
from ...core.types import Key, Matrix, Points, Vector

_DRAWS = 3000  # that particles are placed by
MOST_PLACED = 500
"""More particles than these are draws of the chains as they are."""
_TURNS = 60


@compiled
def placed(key: Key, draws: Float[Array, "m d"], num_particles: int) -> Points:
    """Particles that stand for the draws: their support points, or some of the draws where many are wanted.

    Support points minimise the energy distance to the draws, 2 E‖x − y‖ − E‖x − x'‖, by the fixed-point iteration of
    Mak and Joseph (2018): no step size, every turn an improvement.
    """
    some = draws[jr.choice(key, draws.shape[0], (min(_DRAWS, draws.shape[0]),), replace=False)]
    if num_particles > min(MOST_PLACED, some.shape[0] // 2):
        return draws[jr.choice(key, draws.shape[0], (num_particles,), replace=num_particles > draws.shape[0])]
    first = some[:num_particles] + 1e-3 * jr.normal(jr.fold_in(key, 1), (num_particles, some.shape[1]), some.dtype)

    def turn(particles: Points, _: None) -> tuple[Points, None]:
        towards = 1 / _distances(particles, some)
        apart = 1 / _distances(particles, particles)
        apart = jnp.where(jnp.eye(num_particles, dtype=bool), 0, apart)
        repulsion = jnp.sum(apart, axis=1)[:, None] * particles - apart @ particles
        ratio = some.shape[0] / num_particles
        return (towards @ some + ratio * repulsion) / jnp.sum(towards, axis=1)[:, None], None

    return jax.lax.scan(turn, first, None, length=_TURNS)[0]


@compiled
def with_moments(particles: Points, mean: Vector, covariance: Matrix) -> Points:
    """The particles moved by the affine map that turns least, so that they have this mean and covariance.

    n particles span n − 1 directions: where these are nearly all, the covariance is that in them; where they are far
    fewer, the variances of the coordinates alone are given.
    """
    n, d = particles.shape
    centred = particles - jnp.mean(particles, axis=0, keepdims=True)
    if n - 1 < 0.9 * d:
        own = jnp.std(centred, axis=0)
        sd = jnp.sqrt(jnp.diagonal(covariance))
        return mean[None] + centred * (sd / jnp.where(own > 0, own, 1))[None]
    values, vectors = jnp.linalg.eigh(centred.T @ centred / n)
    flat = (vectors * jnp.where(values > 1e-6 * values[-1], values, jnp.inf)[None] ** -0.5) @ vectors.T
    wanted, axes = jnp.linalg.eigh(covariance)
    root = (axes * jnp.sqrt(jnp.maximum(wanted, 0))[None]) @ axes.T
    return mean[None] + centred @ flat @ root


def nearest_draws(particles: Points, wrong: Bool[Array, " n"], draws: Float[Array, "m d"]) -> Points:
    """The particles, with those that are wrong replaced by the draws that are nearest to them; one after the other."""
    right, others = np.array(particles), np.asarray(draws)
    for row in np.flatnonzero(wrong):
        right[row] = others[np.argmin(np.sum((others - right[row]) ** 2, axis=1))]
    return jnp.asarray(right)


def _distances(x: Points, y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None] - 2 * x @ y.T
    return jnp.sqrt(jnp.maximum(squares, 1e-12))
