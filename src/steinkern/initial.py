"""First particles: from a prior, from a Gaussian, or around a mode."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array

from ._types import Batch, Key, LogDensityFunction, PyTree, Scalar, Vector, check_count, check_positive, like
from .curvature import Hessian
from .metric import AbstractMetric
from .reparam import Space
from .target import AbstractTarget, as_target


def prior(key: Key, draw: Callable[[Key], PyTree], num_particles: int) -> PyTree:
    """Independent draws: `draw(key)` gives one particle's pytree."""
    check_count("num_particles", num_particles)
    return jax.vmap(draw)(jr.split(key, num_particles))


def gaussian(key: Key, centre: PyTree, num_particles: int, scale: Any = 1.0, support: PyTree = None) -> PyTree:
    """Normal draws around one particle's pytree `centre`, with standard deviation `scale` in every coordinate.

    With `support` (see `steinkern.LogDensity`) the noise is added in unconstrained coordinates, so that all particles
    lie inside.
    """
    check_count("num_particles", num_particles)
    check_positive("scale", scale)
    centre = jax.tree.map(jnp.asarray, centre)
    space = Space.of(centre, support)
    space.check(jax.tree.map(lambda leaf: leaf[None], centre), "centre")
    middle = space.unconstrain(centre)
    noise = jr.normal(key, (num_particles, middle.shape[0]), middle.dtype)
    return jax.vmap(space.constrain)(middle[None, :] + like(scale, middle) * noise)


def around_mode(
    key: Key,
    target: AbstractTarget | LogDensityFunction,
    start: PyTree,
    num_particles: int,
    data: Batch = None,
    *,
    scale: Any = 1.0,
    max_steps: int = 500,
) -> PyTree:
    """Normal draws around a mode, with the covariance of the Laplace approximation times scale².

    The mode is that of the density in unconstrained coordinates, found by L-BFGS from `start`; the covariance is the
    inverse of the repaired Hessian there. A good start for everything else; not a posterior by itself.

    Args:
        key: PRNG key.
        target: as for `fit`.
        start: one particle's pytree, in the parameters' own coordinates.
        num_particles: how many to draw.
        data: as for `fit`; all of them are used.
        scale: widens (above 1) or narrows the draws.
        max_steps: of L-BFGS.
    """
    check_count("num_particles", num_particles)
    check_positive("scale", scale)
    check_count("max_steps", max_steps)
    start = jax.tree.map(jnp.asarray, start)
    data = jax.tree.map(jnp.asarray, data)
    bound = as_target(target).bind(start)
    assert bound.space is not None
    bound.space.check(jax.tree.map(lambda leaf: leaf[None], start), "start")
    bound.check_data(data, None)
    vector, metric, value, offset = _laplace(bound, bound.space.unconstrain(start), data, max_steps)
    noise = jr.normal(key, (num_particles, vector.shape[0]), vector.dtype)
    points = vector[None, :] + like(scale, vector) * jax.vmap(metric.unwhiten)(noise)
    if not (bool(jnp.all(jnp.isfinite(points))) and bool(jnp.isfinite(value))):
        raise ValueError("`start` leads nowhere: the search for a mode met NaN or infinity. Start closer to the data.")
    if offset > 0.1:
        raise ValueError(
            f"`start` leads to no mode within {max_steps} steps: the search ended {float(offset):.2g} standard "
            "deviations from where the gradient would vanish. Raise `max_steps`, start closer, or see that the density "
            "is proper."
        )
    return jax.vmap(bound.space.constrain)(points)


@eqx.filter_jit
def _laplace(
    target: AbstractTarget, start: Vector, data: Batch, max_steps: int
) -> tuple[Vector, AbstractMetric, Scalar, Scalar]:
    """The mode, the metric there, log p there, and how far the mode still is, in standard deviations a coordinate."""
    mode = _minimise(lambda x: -target.log_density(x, data), start, max_steps)
    metric = Hessian()(target, mode, data).factorise(1e-6)
    offset = jnp.sqrt(jnp.mean(metric.pull_score(target.score(mode, data)) ** 2))
    return mode, metric, target.log_density(mode, data), offset


def _minimise(loss: Callable[[Vector], Scalar], start: Vector, max_steps: int) -> Vector:
    """L-BFGS until the gradient has fallen to the square root of the precision, relative to where it began."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)
    first = optax.tree.norm(jax.grad(loss)(start))
    enough = first * float(jnp.finfo(start.dtype).eps) ** 0.5

    def unfinished(carry: tuple[Vector, Any, Array]) -> Array:
        _, state, count = carry
        size = optax.tree.norm(optax.tree.get(state, "grad"))
        return (count == 0) | ((count < max_steps) & (size > enough))

    def step(carry: tuple[Vector, Any, Array]) -> tuple[Vector, Any, Array]:
        x, state, count = carry
        value, gradient = value_and_grad(x, state=state)
        updates, state = solver.update(gradient, state, x, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(x, updates), state, count + 1

    with jax.numpy_dtype_promotion("standard"):  # optax mixes integer types inside
        return jax.lax.while_loop(unfinished, step, (start, solver.init(start), jnp.zeros((), jnp.int32)))[0]
