"""Single-path Pathfinder: Zhang, Carpenter, Gelman and Vehtari (2022), "Pathfinder: Parallel quasi-Newton variational
inference", Journal of Machine Learning Research 23(306).

At every iterate of L-BFGS stands a Gaussian: its covariance is the inverse Hessian that the last pairs of moves and
gradient differences tell, its mean one such Newton step further. The Gaussian of the best evidence lower bound wins.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .mode import lbfgs_path

MEMORY = 6
ELBO_DRAWS = 25


class Gaussian(NamedTuple):
    """The approximation, and what it cost."""

    mean: np.ndarray
    covariance: np.ndarray
    gradients: int
    values: int


def pathfinder(key: Any, log_density: Callable[[Any], Any], start: np.ndarray) -> Gaussian:
    """The best Gaussian along the path from `start`."""
    path = lbfgs_path(log_density, start, MEMORY)
    d = start.size

    def elbo(key: Any, mean: Any, covariance: Any) -> Any:
        factor = jnp.linalg.cholesky(covariance)
        noise = jr.normal(key, (ELBO_DRAWS, d), mean.dtype)
        draws = mean + noise @ factor.T
        log_q = -0.5 * jnp.sum(noise**2, axis=1) - jnp.sum(jnp.log(jnp.diagonal(factor)))
        found = jnp.mean(jax.vmap(log_density)(draws) - log_q)
        return jnp.where(jnp.isfinite(found), found, -jnp.inf)

    def step(carry: Any, iterate: Any) -> Any:
        key, x, score, following, following_score = iterate
        diagonal, moves, differences = carry
        move, difference = following - x, score - following_score
        usable = move @ difference > 1e-12 * (difference @ difference)
        diagonal = jnp.where(usable, _next_diagonal(diagonal, move, difference), diagonal)
        moves = jnp.where(usable, jnp.roll(moves, -1, axis=0).at[-1].set(move), moves)
        differences = jnp.where(usable, jnp.roll(differences, -1, axis=0).at[-1].set(difference), differences)
        covariance = _inverse_hessian(diagonal, moves, differences)
        mean = following + covariance @ following_score
        return (diagonal, moves, differences), (elbo(key, mean, covariance), mean, covariance)

    def run(key: Any, points: Any, scores: Any) -> Any:
        none = jnp.zeros((MEMORY, d), points.dtype)
        keys = jr.split(key, len(points) - 1)
        iterates = (keys, points[:-1], scores[:-1], points[1:], scores[1:])
        _, (elbos, means, covariances) = jax.lax.scan(step, (jnp.ones_like(points[0]), none, none), iterates)
        best = jnp.argmax(elbos)
        return means[best], covariances[best]

    with jax.numpy_rank_promotion("allow"):
        mean, covariance = jax.jit(run)(key, jnp.asarray(path.points), jnp.asarray(path.scores))
    return Gaussian(np.asarray(mean), np.asarray(covariance), path.gradients, ELBO_DRAWS * (len(path.points) - 1))


def _next_diagonal(diagonal: Any, move: Any, difference: Any) -> Any:
    """Gilbert and Lemaréchal's (1989) update, as in Algorithm 3 of the paper."""
    a = difference @ (diagonal * difference)
    b = difference @ move
    c = move @ (move / diagonal)
    return 1 / (a / (b * diagonal) + difference**2 / b - a * move**2 / (b * c * diagonal**2))


def _inverse_hessian(diagonal: Any, moves: Any, differences: Any) -> Any:
    """BFGS updates of the diagonal, oldest pair first; a pair of zeros is none."""

    def update(inverse: Any, pair: Any) -> Any:
        move, difference = pair
        product = move @ difference
        present = product > 0
        rho = 1 / jnp.where(present, product, 1.0)
        shift = jnp.eye(move.size, dtype=move.dtype) - rho * jnp.outer(move, difference)
        updated = shift @ inverse @ shift.T + rho * jnp.outer(move, move)
        return jnp.where(present, updated, inverse), None

    return jax.lax.scan(update, jnp.diag(diagonal), (moves, differences))[0]
