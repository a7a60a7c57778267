"""Log densities of 13 coordinates with and without linear algebra, as plain functions, and two NumPyro models.

The data are made by NumPy: 11 counts or 11 values on a line, 40 observations of three numbers, 60 transitions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax.experimental.ode import odeint

N = 11
DIM = N + 2
RANDOM = np.random.default_rng(0)
X = np.linspace(-10, 10, N)
COUNTS = RANDOM.poisson(20, N).astype(float)
VALUES = np.sin(X / 3) + 0.3 * RANDOM.standard_normal(N)
SERIES = 0.5 * np.cumsum(RANDOM.standard_normal((40, 3)), axis=0)
TRANSITIONS = RANDOM.multinomial(15, np.full((4, 4), 0.25)).astype(float)
POPULATIONS = 1 + 0.3 * RANDOM.standard_normal((N, 2))
ROWS = RANDOM.standard_normal((50, 4))


def covariance(u: Any, noise: float) -> Any:
    """A squared exponential with log length scale u[0] and log standard deviation u[1]."""
    distances = (X[:, None] - X[None]) / jnp.exp(u[0])
    return jnp.exp(u[1]) ** 2 * jnp.exp(-0.5 * distances**2) + noise * jnp.eye(N)


def standard(u: Any) -> Any:
    return -0.5 * jnp.sum(u**2)


def poisson(f: Any) -> Any:
    return jnp.sum(COUNTS * f - jnp.exp(f))


def plain(u: Any) -> Any:
    """No linear algebra."""
    return poisson(u[0] + jnp.exp(u[1]) * u[2:]) + standard(u)


def cholesky(u: Any) -> Any:
    """A latent Gaussian process."""
    return poisson(jnp.linalg.cholesky(covariance(u, 1e-6)) @ u[2:]) + standard(u)


def five_choleskys(u: Any) -> Any:
    """Five latent Gaussian processes of different length scales, one after the other."""

    def step(total: Any, shift: Any) -> Any:
        root = jnp.linalg.cholesky(covariance(u.at[0].add(shift), 1e-6))
        return total + poisson(root @ u[2:]) / 5, None

    return jax.lax.scan(step, standard(u), jnp.linspace(-0.5, 0.5, 5, dtype=u.dtype))[0]


def marginal(u: Any) -> Any:
    """A Gaussian process whose values are integrated out; u[2:] is its mean."""
    root = jnp.linalg.cholesky(covariance(u, 0.1))
    whitened = jsp.linalg.solve_triangular(root, VALUES - u[2:], lower=True)
    return -0.5 * whitened @ whitened - jnp.sum(jnp.log(jnp.diagonal(root))) + standard(u)


def inv(u: Any) -> Any:
    """The same by the inverse, without its determinant."""
    residuals = VALUES - u[2:]
    return -0.5 * residuals @ jnp.linalg.inv(covariance(u, 0.1)) @ residuals + standard(u)


def lu(u: Any) -> Any:
    """The same by an LU factorisation."""
    residuals = VALUES - u[2:]
    factors, pivots = jsp.linalg.lu_factor(covariance(u, 0.1))
    solution = jsp.linalg.lu_solve((factors, pivots), residuals)
    return -0.5 * residuals @ solution - 0.5 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factors)))) + standard(u)


def qr(u: Any) -> Any:
    """The same by a QR factorisation."""
    residuals = VALUES - u[2:]
    q, r = jnp.linalg.qr(covariance(u, 0.1))
    solution = jsp.linalg.solve_triangular(r, q.T @ residuals)
    return -0.5 * residuals @ solution - 0.5 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r)))) + standard(u)


def slogdet_and_solve(u: Any) -> Any:
    """The same by `slogdet` and `solve`."""
    residuals, matrix = VALUES - u[2:], covariance(u, 0.1)
    return -0.5 * residuals @ jnp.linalg.solve(matrix, residuals) - 0.5 * jnp.linalg.slogdet(matrix)[1] + standard(u)


def eigh(u: Any) -> Any:
    """The same by eigenvalues."""
    values, basis = jnp.linalg.eigh(covariance(u, 0.1))
    projected = basis.T @ (VALUES - u[2:])
    return -0.5 * jnp.sum(projected**2 / values) - 0.5 * jnp.sum(jnp.log(values)) + standard(u)


def expm(u: Any) -> Any:
    """A Markov process of four states seen at equal times: twelve log rates and the log of the time."""
    rates = jnp.zeros((4, 4), u.dtype).at[~np.eye(4, dtype=bool)].set(jnp.exp(u[:12] - 1))
    generator = rates - jnp.diag(jnp.sum(rates, axis=1))
    return jnp.sum(TRANSITIONS * jnp.log(jsp.linalg.expm(generator * jnp.exp(u[12])))) + standard(u)


def kalman(u: Any) -> Any:
    """A linear state of three numbers, seen with noise 40 times: transitions, log noise of states, log noise."""
    transition = 0.5 * jnp.eye(3) + 0.3 * u[:9].reshape(3, 3)
    state_noise, noise = jnp.diag(jnp.exp(2 * u[9:12])), jnp.exp(2 * u[12]) * jnp.eye(3)

    def step(carry: Any, seen: Any) -> Any:
        mean, spread, total = carry
        mean, spread = transition @ mean, transition @ spread @ transition.T + state_noise
        residual, predicted = seen - mean, spread + noise
        total -= 0.5 * (residual @ jnp.linalg.solve(predicted, residual) + jnp.linalg.slogdet(predicted)[1])
        gain = jnp.linalg.solve(predicted, spread).T
        return (mean + gain @ residual, spread - gain @ spread, total), None

    start = jnp.zeros(3, u.dtype), jnp.eye(3, dtype=u.dtype), standard(u)
    return jax.lax.scan(step, start, jnp.asarray(SERIES, u.dtype))[0][2]


def ode(u: Any) -> Any:
    """Predators and prey by `odeint`: four log rates, two log starts, the log noise, six shifts of what is seen."""
    rates = jnp.exp(0.3 * u[:4])

    def slope(state: Any, _: Any) -> Any:
        prey, predators = state
        return jnp.stack(
            [rates[0] * prey - rates[1] * prey * predators, rates[2] * prey * predators - rates[3] * predators]
        )

    times = jnp.linspace(0, 5, N, dtype=u.dtype)
    # Without a bound on its steps `odeint` may take forever where the equation is stiff; with one it may take minutes.
    path = odeint(slope, jnp.exp(0.3 * u[4:6]), times, rtol=1e-6, atol=1e-5, mxstep=1000)
    shifts = jnp.repeat(u[7:].reshape(3, 2), 4, axis=0)[:N]
    return -0.5 * jnp.sum((POPULATIONS - path - shifts) ** 2) * jnp.exp(-2 * u[6]) - 2 * N * u[6] + standard(u)


DENSITIES: dict[str, Callable[[Any], Any]] = {
    function.__name__: function
    for function in (
        cholesky, marginal, inv, lu, qr, slogdet_and_solve, five_choleskys, expm, kalman, eigh, ode, plain
    )
}  # fmt: skip
"""By name."""


def multivariate_normal() -> None:
    """A latent Gaussian process by NumPyro's `MultivariateNormal`."""
    import numpyro
    from numpyro import distributions as dist

    scales = numpyro.sample("scales", dist.Normal(0, 1).expand([2]).to_event(1))
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(N), covariance(scales, 1e-3)))
    numpyro.sample("counts", dist.Poisson(jnp.exp(f)), obs=COUNTS)


def lkj() -> None:
    """Rows of four correlated numbers: NumPyro's `LKJCholesky`, their scales and three means."""
    import numpyro
    from numpyro import distributions as dist

    root = numpyro.sample("root", dist.LKJCholesky(4, 2.0))
    scales = numpyro.sample("scales", dist.HalfNormal(1).expand([4]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    rows = dist.MultivariateNormal(jnp.append(mean, 0.0), scale_tril=scales[:, None] * root)
    numpyro.sample("rows", rows, obs=ROWS)


MODELS: dict[str, Callable[[], None]] = {function.__name__: function for function in (multivariate_normal, lkj)}
"""Models of NumPyro by name."""
