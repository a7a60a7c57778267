"""Fifty targets of two dimensions in one program, with exact moments: for the calibration of stated errors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NAMES = ("sinh-arcsinh", "log gamma", "Student", "logistic", "cut off", "stepped")


def _sinh_arcsinh(u: Any, a: Any, b: Any) -> Any:
    inner = b * jnp.arcsinh(u) - a
    return -0.5 * jnp.sinh(inner) ** 2 + jnp.log(b * jnp.cosh(inner)) - 0.5 * jnp.log1p(u**2)


def _log_gamma(u: Any, a: Any, b: Any) -> Any:
    return a * u - jnp.exp(u) + 0 * b


def _student(u: Any, a: Any, b: Any) -> Any:
    return -(a + 1) / 2 * jnp.log1p(u**2 / a) + 0 * b


def _logistic(u: Any, a: Any, b: Any) -> Any:
    return a * u - b * jnp.logaddexp(u, jnp.zeros_like(u))


def _cut_off(u: Any, a: Any, b: Any) -> Any:
    return jnp.where(u > a, -0.5 * u**2, -jnp.inf) + 0 * b


def _stepped(u: Any, a: Any, b: Any) -> Any:
    return -0.5 * u**2 + jnp.where(u > b, jnp.log(a), 0.0)


_FAMILIES = (_sinh_arcsinh, _log_gamma, _student, _logistic, _cut_off, _stepped)


class Parameters(NamedTuple):
    """Of a target: x = mixing · u + shift, with the coordinates of u independent."""

    family: Any
    a: Any
    b: Any
    mixing: Any
    shift: Any


def log_density(x: Any, own: Parameters) -> Any:
    u = jnp.linalg.solve(own.mixing, x - own.shift)
    parts = jax.lax.switch(own.family, [jax.vmap(family) for family in _FAMILIES], u, own.a, own.b)
    return jnp.sum(parts)


class Target(NamedTuple):
    name: str
    parameters: Parameters
    mean: np.ndarray
    sd: np.ndarray


def targets(number: int = 50) -> list[Target]:
    generator = np.random.default_rng(0)
    return [_target(generator, place % len(NAMES)) for place in range(number)]


def _target(generator: np.random.Generator, family: int) -> Target:
    a, b = np.zeros(2), np.ones(2)
    if family == 0:
        a, b = generator.uniform(-0.7, 0.7, 2), generator.uniform(0.7, 1.3, 2)
    elif family == 1:
        a = generator.uniform(1, 20, 2)
    elif family == 2:
        a = generator.uniform(6, 40, 2)
    elif family == 3:
        a, b = generator.uniform(1, 3, 2), generator.uniform(4, 8, 2)
    elif family == 4:
        a = generator.uniform(-2.5, -1.0, 2)
    else:
        a, b = generator.uniform(1.2, 2.0, 2) ** generator.choice([-1, 1], 2), generator.uniform(-0.5, 0.5, 2)
    mixing = np.tril(generator.uniform(-1, 1, (2, 2)), -1) + np.diag(np.exp(generator.uniform(-2, 2, 2)))
    parameters = Parameters(np.int32(family), a, b, mixing, generator.normal(size=2) * 10)
    mean, variance = _moments(family, a, b)
    sd = np.sqrt(np.sum(mixing**2 * variance, axis=1))
    return Target(NAMES[family], parameters, mixing @ mean + parameters.shift, sd)


def _moments(family: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By sums over a grid that is fine, far and has its edges at the edges of the density."""
    means, variances = np.zeros(2), np.zeros(2)
    for i in range(2):
        edge = {4: a[i], 5: b[i]}.get(family, 0.0)
        low = np.linspace(edge - 60, edge, 300_001)
        grid = np.concatenate([(low[1:] + low[:-1]) / 2, 2 * edge - (low[1:] + low[:-1])[::-1] / 2])
        values = np.asarray(_FAMILIES[family](jnp.asarray(grid), a[i], b[i]))
        with np.errstate(over="ignore"):
            weights = np.exp(np.where(np.isnan(values), -np.inf, values) - np.nanmax(values))
        weights /= weights.sum()
        means[i] = weights @ grid
        variances[i] = weights @ (grid - means[i]) ** 2
    return means, variances
