"""The mode of a log density by SciPy's Newton steps in a trust region, from a naive start."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize


class Mode(NamedTuple):
    """Where the climb ended, the Hessian of -log p there, and what it cost."""

    point: np.ndarray
    precision: np.ndarray
    gradients: int
    hessians: int
    sequential: int


def find_mode(log_density: Callable[[Any], Any], start: np.ndarray) -> Mode:
    """The best point; nothing is raised where there is no mode, the Hessian tells."""

    @jax.jit
    def loss(x: Any) -> tuple[Any, Any]:
        value, gradient = jax.value_and_grad(log_density)(x)
        return jnp.where(jnp.isnan(value), jnp.inf, -value), -gradient

    hessian = jax.jit(jax.hessian(lambda x: -log_density(x)))
    options = {"gtol": 1e-8, "maxiter": 1000}
    best = minimize(loss, start, jac=True, hess=hessian, method="trust-exact", options=options)
    return Mode(best.x, np.asarray(hessian(best.x)), best.nfev, best.nhev, best.nfev + best.nhev)
