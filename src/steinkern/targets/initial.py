"""Initial particles: draws from a prior, from a Gaussian, or around a mode."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array

from ..core.arrays import as_array, as_concrete, as_concrete_key, as_key, as_particle
from ..core.errors import explain_errors, shapes
from ..core.programs import compiled
from ..core.types import (
    Batch,
    Key,
    KeyLike,
    LogDensityFunction,
    PyTree,
    Scalar,
    Vector,
    cast_like,
    check_callable,
    check_count,
    check_positive,
)
from ..linalg.metrics import AbstractMetric
from .curvature import Hessian
from .supports import Space
from .target import AbstractTarget, BoundTarget, as_target


def prior(key: KeyLike, draw: Callable[[Key], PyTree], num_particles: int) -> PyTree:
    """Independent draws from a prior, where `draw(key)` returns one particle's pytree."""
    check_count("num_particles", num_particles)
    check_callable("draw", draw, "a function of a key that gives one particle")
    return jax.vmap(draw)(jr.split(as_key(key), num_particles))


def gaussian(key: KeyLike, center: PyTree, num_particles: int, scale: Any = 1.0, support: PyTree = None) -> PyTree:
    """Normal draws around one particle's pytree `center`, with standard deviation `scale` in every coordinate.

    With `support` (see `steinkern.LogDensity`) the noise is added in unconstrained coordinates, so that all particles
    lie inside the support.
    """
    check_count("num_particles", num_particles)
    key, center = as_key(key), as_particle("center", center)
    space = Space.of(center, support)
    space.check(jax.tree.map(lambda leaf: leaf[None], center), "center")
    mean = space.unconstrain(center)
    noise = jr.normal(key, (num_particles, mean.shape[0]), mean.dtype)
    return jax.vmap(space.constrain)(mean[None, :] + _as_scale(scale, mean)[None, :] * noise)


def _as_scale(value: Any, point: Vector) -> Array:
    """Check and broadcast the standard deviation: one positive number, or one for each coordinate."""
    value = as_array("scale", value)
    check_positive("scale", value)
    if jnp.shape(value) not in ((), (1,), point.shape):
        raise ValueError(
            f"`scale` must be one number, or one for each of the {point.shape[0]} coordinates, got shape "
            f"{jnp.shape(value)}."
        )
    return jnp.broadcast_to(cast_like(value, point), point.shape)


def around_mode(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    start: PyTree,
    num_particles: int,
    data: Batch = None,
    *,
    scale: Any = 1.0,
    max_steps: int = 500,
) -> PyTree:
    """Normal draws around a mode, with the covariance of the Laplace approximation times scale².

    L-BFGS finds the mode of the density in unconstrained coordinates from `start`; the covariance is the inverse of the
    repaired Hessian there. The draws are initial particles for any sampler, not draws of the posterior.

    Args:
        key: PRNG key.
        target: as for `fit`.
        start: one particle's pytree, in constrained coordinates.
        num_particles: the number of draws.
        data: as for `fit`; all examples are used.
        scale: widens (above 1) or narrows the draws.
        max_steps: the maximum number of L-BFGS steps.
    """
    check_count("num_particles", num_particles)
    check_count("max_steps", max_steps)
    key, start = as_concrete_key(key), as_particle("start", as_concrete("start", start))
    data = as_concrete("data", data)
    if any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(start)):
        raise ValueError("`start` must be in float32 or float64: the curvature at a mode is factorized.")
    bound = as_target(target).bind(start)
    bound.space.check(jax.tree.map(lambda leaf: leaf[None], start), "start")
    bound.check_data(data, None)
    scales = _as_scale(scale, bound.space.unconstrain(start))
    and_data = "" if data is None else f", and `data`, {shapes(data, 0)}"
    with explain_errors(
        f"`target` must take `start`, {shapes(start, 0)}{and_data}", "Was it written for other shapes?"
    ):
        vector, metric, value, offset = _laplace(bound, bound.space.unconstrain(start), data, max_steps)
    noise = jr.normal(key, (num_particles, vector.shape[0]), vector.dtype)
    points = vector[None, :] + scales[None, :] * jax.vmap(metric.unwhiten)(noise)
    if not (bool(jnp.all(jnp.isfinite(points))) and bool(jnp.isfinite(value))):
        raise ValueError(
            "`start` must lead to a mode, but the search met NaN or infinity. Start closer to the data, and check that "
            "`data` has no NaN."
        )
    if offset > 0.1:
        raise ValueError(
            f"`start` must lead to a mode, but after {max_steps} steps the next Newton step is {float(offset):.2g} "
            "standard deviations. Raise `max_steps`, start closer, or check that the density is proper."
        )
    return jax.vmap(bound.space.constrain)(points)


@compiled
def _laplace(
    target: BoundTarget, start: Vector, data: Batch, max_steps: int
) -> tuple[Vector, AbstractMetric, Scalar, Scalar]:
    """The mode, the metric there, log p there, and the size of the next Newton step in standard deviations."""
    mode = _minimize(lambda x: -target.log_density(x, data), start, max_steps)
    metric = Hessian()(target, mode, data).factorize(1e-6)
    offset = jnp.sqrt(jnp.mean(metric.pull_score(target.score(mode, data)) ** 2))
    return mode, metric, target.log_density(mode, data), offset


def _minimize(loss: Callable[[Vector], Scalar], start: Vector, max_steps: int) -> Vector:
    """Minimise by L-BFGS until the gradient's norm is √eps times that at the start, or for `max_steps` steps."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)
    first = optax.tree.norm(jax.grad(loss)(start))
    tolerance = first * float(jnp.finfo(start.dtype).eps) ** 0.5

    def unfinished(carry: tuple[Vector, Any, Array]) -> Array:
        _, state, count = carry
        norm = optax.tree.norm(optax.tree.get(state, "grad"))
        return (count == 0) | ((count < max_steps) & (norm > tolerance))

    def step(carry: tuple[Vector, Any, Array]) -> tuple[Vector, Any, Array]:
        x, state, count = carry
        value, gradient = value_and_grad(x, state=state)
        updates, state = solver.update(gradient, state, x, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(x, updates), state, count + 1

    with jax.numpy_dtype_promotion("standard"):  # optax mixes integer types
        return jax.lax.while_loop(unfinished, step, (start, solver.init(start), jnp.zeros((), jnp.int32)))[0]
