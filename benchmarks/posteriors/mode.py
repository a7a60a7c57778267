"""The mode of a log density: L-BFGS from a naive start, then Newton's steps until they no longer matter."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

LBFGS_STEPS = 1000
NEWTON_STEPS = 50


class Mode(NamedTuple):
    """Where the climb ended, the Hessian of -log p there, and what it cost."""

    point: np.ndarray
    precision: np.ndarray
    gradients: int
    hessians: int
    sequential: int


class Path(NamedTuple):
    """The iterates of L-BFGS: points and scores (steps, d), log densities, and gradients that were evaluated."""

    points: np.ndarray
    scores: np.ndarray
    log_densities: np.ndarray
    gradients: int


def find_mode(log_density: Callable[[Any], Any], start: np.ndarray) -> Mode:
    """The best point that is found; nothing is raised where there is no mode, the Hessian tells."""
    path = lbfgs_path(log_density, start)
    return _newton(log_density, path.points[np.nanargmax(path.log_densities)], path.gradients)


def lbfgs_path(log_density: Callable[[Any], Any], start: np.ndarray, memory_size: int = 10) -> Path:
    """Optax's L-BFGS with its line search, until a step moves nothing, meets NaN, or is the last."""
    optimiser = optax.lbfgs(memory_size=memory_size)

    def loss(x: Any) -> Any:
        return -log_density(x)

    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry: Any) -> Any:
        x, state, (points, grads, values), gradients, t, _ = carry
        value, grad = value_and_grad(x, state=state)
        seen = points.at[t].set(x), grads.at[t].set(grad), values.at[t].set(value)
        updates, state = optimiser.update(grad, state, x, value=value, grad=grad, value_fn=loss)
        gradients += 1 + state[-1].info.num_linesearch_steps
        going = jnp.isfinite(value) & (jnp.abs(updates) > 1e-9 * (1 + jnp.abs(x))).any()
        return x + updates, state, seen, gradients, t + 1, going

    def run(x: Any) -> Any:
        blank = jnp.full((LBFGS_STEPS, x.size), jnp.nan, x.dtype)
        first = (x, optimiser.init(x), (blank, blank, blank[:, 0]), jnp.asarray(0), 0, jnp.asarray(True))
        return jax.lax.while_loop(lambda carry: carry[-1] & (carry[-2] < LBFGS_STEPS), step, first)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # inside Optax
        _, _, seen, gradients, taken, _ = jax.jit(run)(jnp.asarray(start))
    points, grads, values = (np.asarray(part)[: int(taken)] for part in seen)
    return Path(points, -grads, -values, int(gradients))


def _newton(log_density: Callable[[Any], Any], point: np.ndarray, gradients: int) -> Mode:
    """Steps along |H|⁻¹ ∇log p, halved until they go up."""
    value_of = jax.jit(log_density)
    derivatives = jax.jit(lambda x: (jax.grad(log_density)(x), -jax.hessian(log_density)(x)))
    value, hessians, sequential = float(value_of(point)), 0, gradients
    while True:
        gradient, precision = (np.asarray(part) for part in derivatives(point))
        gradients, hessians, sequential = gradients + 1, hessians + 1, sequential + 1
        if hessians > NEWTON_STEPS or not (np.isfinite(gradient).all() and np.isfinite(precision).all()):
            break
        eigenvalues, basis = np.linalg.eigh(precision)
        curvature = np.maximum(np.abs(eigenvalues), 1e-12 * np.abs(eigenvalues).max() + 1e-300)
        direction = basis @ ((basis.T @ gradient) / curvature)
        if gradient @ direction < 1e-16:
            break
        for _ in range(40):
            trial = float(value_of(point + direction))
            sequential += 1
            if trial > value:
                break
            direction = direction / 2
        else:
            break
        point, value = point + direction, trial
    return Mode(point, precision, gradients, hessians, sequential)
