"""Four bananas and three healthy targets, beside those of `targets`, with their exact moments.

Bends are what `fit` without a sampler cannot follow with one metric, and where chains that start from too narrow
particles can be as narrow as these.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from .references import on_a_grid
from .target import Target, normal

Moments = Callable[[], tuple[np.ndarray, np.ndarray]]
SHAPES = {  # sd of x, bend, sd of y around the bend, dimensions
    "banana-readme": (2.0, 0.25, 0.3, 2),
    "banana-narrow": (1.0, 1.0, 0.2, 2),
    "banana-wide": (3.0, 0.5, 1.0, 2),
    "banana-five": (2.0, 0.25, 0.3, 5),
}


def _banana(x: Any, sd: float, bend: float, width: float) -> Any:
    return normal(x[0], 0.0, sd) + normal(x[1], bend * x[0] ** 2, width) + normal(x[2:])


def _moments(sd: float, bend: float, width: float, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """E x² = s² and Var x² = 2s⁴ for x ~ N(0, s²)."""
    rest = dim - 2
    second = math.sqrt(2 * bend**2 * sd**4 + width**2)
    return np.array([0.0, bend * sd**2] + rest * [0.0]), np.array([sd, second] + rest * [1.0])


def _student(x: Any) -> Any:
    return -0.5 * (8 + x.size) * jnp.log1p(jnp.sum(x**2) / 8)


def _logistic(x: Any) -> Any:
    random = np.random.default_rng(5)
    features = random.standard_normal((80, 2)) * np.array([1.0, 10.0])
    labels = (random.random(80) < 1 / (1 + np.exp(-features @ np.array([0.8, -0.1])))).astype(float)
    linear = jnp.asarray(features, x.dtype) @ x
    return jnp.sum(jnp.asarray(labels, x.dtype) * linear - jnp.logaddexp(0, linear)) + normal(x, 0.0, 5.0)


def _made() -> dict[str, tuple[Target, Moments]]:
    made: dict[str, tuple[Target, Moments]] = {}
    for name, (sd, bend, width, dim) in SHAPES.items():
        density = partial(_banana, sd=sd, bend=bend, width=width)
        made[name] = Target(name, density, dim, "rules", "a banana"), partial(_moments, sd, bend, width, dim)
    logistic = Target("logistic", _logistic, 2, "rules", "a logistic regression with two columns")
    gaussian = Target("gaussian", lambda x: normal(x, 1.0, jnp.arange(1.0, 6.0, dtype=x.dtype)), 5, "rules", "")
    student = Target("student", _student, 3, "rules", "a t distribution with 8 degrees of freedom")
    made["gaussian"] = gaussian, lambda: (np.ones(5), np.arange(1.0, 6.0))
    made["student"] = student, lambda: (np.zeros(3), np.full(3, math.sqrt(8 / 6)))
    made["logistic"] = logistic, partial(on_a_grid, logistic)
    return made


TARGETS = _made()
"""Targets, and functions that return their means and standard deviations, by name."""
