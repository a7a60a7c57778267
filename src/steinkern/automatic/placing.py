"""From many draws to a handful of well-placed particles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._types import Key, Matrix, Points, Vector
from ..metric import DenseMetric

_DRAWS = 3000  # that particles are placed by
MOST_PLACED = 500
"""More particles than these are draws of the chains as they are."""
_TURNS = 60


@eqx.filter_jit
def placed(key: Key, draws: Float[Array, "m d"], num_particles: int) -> Points:
    """Particles that stand for the draws: their support points, or some of the draws where many are wanted.

    Support points minimise the energy distance to the draws, 2 E‖x − y‖ − E‖x − x'‖, in coordinates that are whitened
    here, by the fixed-point iteration of Mak and Joseph (2018): no step size, every turn an improvement.
    """
    some = draws[jr.choice(key, draws.shape[0], (min(_DRAWS, draws.shape[0]),), replace=False)]
    if num_particles > min(MOST_PLACED, some.shape[0] // 2):
        return draws[jr.choice(key, draws.shape[0], (num_particles,), replace=num_particles > draws.shape[0])]
    centre = jnp.mean(some, axis=0, keepdims=True)
    scale = jnp.std(some, axis=0, keepdims=True)
    scale = jnp.where(scale > 0, scale, 1)
    unit = (some - centre) / scale
    dense = unit.shape[1] < unit.shape[0] // 10
    metric = DenseMetric.of(jnp.linalg.inv(_covariance(unit))) if dense else None
    white = unit if metric is None else unit @ metric.root.T
    first = white[:num_particles] + 1e-3 * jr.normal(jr.fold_in(key, 1), (num_particles, white.shape[1]), white.dtype)

    def turn(particles: Points, _: None) -> tuple[Points, None]:
        towards = 1 / _distances(particles, white)
        apart = 1 / _distances(particles, particles)
        apart = jnp.where(jnp.eye(num_particles, dtype=bool), 0, apart)
        repulsion = jnp.sum(apart, axis=1)[:, None] * particles - apart @ particles
        ratio = white.shape[0] / num_particles
        return (towards @ white + ratio * repulsion) / jnp.sum(towards, axis=1)[:, None], None

    particles = jax.lax.scan(turn, first, None, length=_TURNS)[0]
    unwhitened = particles if metric is None else particles @ metric.inverse_root.T
    return centre + scale * unwhitened


@eqx.filter_jit
def with_moments(particles: Points, draws: Float[Array, "m d"], mean: Vector, variance: Vector) -> Points:
    """The particles moved by an affine map, so that they have this mean, these variances, and the draws' correlations.

    The correlations are left as they are where there are too few particles for all of them.
    """
    n, d = particles.shape
    sd = jnp.sqrt(variance)
    if n > 1.2 * d + 1:
        spread = jnp.std(draws, axis=0)
        scale = jnp.where(spread > 0, spread, 1)
        # Both covariances in units of the draws, then the map from one to the other that turns least.
        wanted = DenseMetric.of(jnp.linalg.inv(_covariance((draws - jnp.mean(draws, axis=0)[None]) / scale[None])))
        unit = (particles - jnp.mean(particles, axis=0, keepdims=True)) / scale[None]
        white = unit @ wanted.root.T
        values, vectors = jnp.linalg.eigh(_covariance(white))
        flat = (vectors / jnp.sqrt(jnp.maximum(values, 1e-6))[None]) @ vectors.T
        particles = (white @ flat) @ wanted.inverse_root.T * scale[None]
    centred = particles - jnp.mean(particles, axis=0, keepdims=True)
    own = jnp.std(centred, axis=0)
    return mean[None] + centred * (sd / jnp.where(own > 0, own, 1))[None]


def _covariance(points: Points) -> Matrix:
    centred = points - jnp.mean(points, axis=0, keepdims=True)
    n, d = points.shape
    return centred.T @ centred / n + 1e-9 * jnp.eye(d, dtype=points.dtype)


def _distances(x: Points, y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None] - 2 * x @ y.T
    return jnp.sqrt(jnp.maximum(squares, 1e-12))
