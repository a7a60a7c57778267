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


def find_mode(log_density: Callable[[Any], Any], start: np.ndarray) -> Mode:
    """The best point; nothing is raised where there is no mode, the Hessian tells."""
    return _newton(log_density, *_lbfgs(log_density, start))


def _lbfgs(log_density: Callable[[Any], Any], start: np.ndarray) -> tuple[np.ndarray, int]:
    """The best point of Optax's L-BFGS, which goes on until a step moves nothing or meets NaN, and its gradients."""
    optimizer = optax.lbfgs(memory_size=10)

    def loss(x: Any) -> Any:
        return -log_density(x)

    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry: Any) -> Any:
        x, state, best, gradients, t, _ = carry
        value, grad = value_and_grad(x, state=state)
        best = jax.tree.map(lambda new, old: jnp.where(value < best[1], new, old), (x, value), best)
        updates, state = optimizer.update(grad, state, x, value=value, grad=grad, value_fn=loss)
        gradients += 1 + state[-1].info.num_linesearch_steps
        going = jnp.isfinite(value) & (jnp.abs(updates) > 1e-9 * (1 + jnp.abs(x))).any()
        return x + updates, state, best, gradients, t + 1, going

    def run(x: Any) -> Any:
        first = (x, optimizer.init(x), (x, jnp.full((), jnp.inf, x.dtype)), jnp.asarray(0), 0, jnp.asarray(True))
        return jax.lax.while_loop(lambda carry: carry[-1] & (carry[-2] < LBFGS_STEPS), step, first)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # inside Optax
        _, _, (point, _), gradients, *_ = jax.jit(run)(jnp.asarray(start))
    return np.asarray(point), int(gradients)


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
