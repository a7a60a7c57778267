"""Stein's identity against Monte Carlo noise: zero-variance control variates (Assaraf and Caffarel; Mira et al., 2013).

E[s] = 0 and E[(x_i − m) s_k] = −δ_ik at the target, so what a sample's own means of them are is noise, and moves with
the noise in the mean and variance of x_i. Regressing the one on the other takes it out: all of it for a Gaussian.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Scalar, Vector
from ..metric import AbstractMetric

_DRAWS_A_CONTROL = 20
_LARGEST = 5000  # draws that a regression looks at


class Estimates(NamedTuple):
    """Moments of the target by coordinate, with their standard errors."""

    mean: Vector
    variance: Vector
    mean_error: Vector
    variance_error: Vector


@eqx.filter_jit
def moments_by_stein(points: Float[Array, "t n d"], scores: Float[Array, "t n d"], metric: AbstractMetric) -> Estimates:
    """Mean and variance of every coordinate, each with or without the correction, whichever has the smaller error.

    Args:
        points: of the chains, which are independent.
        scores: ∇log p there.
        metric: near the inverse of the covariance; it makes the regressions well conditioned.
    """
    t, n, d = points.shape
    plain_mean = jnp.mean(points, axis=(0, 1))
    centred = points - plain_mean[None, None]
    pulled = jax.vmap(jax.vmap(metric.pull_score))(scores)
    spacing = max(1, t * n // _LARGEST)

    def corrected(values: Float[Array, "t n"], controls: Float[Array, "t n k"]) -> tuple[Scalar, Scalar]:
        """The mean of `values` and its standard error."""
        few = controls.reshape(t * n, -1)[::spacing]
        own = values.reshape(-1)[::spacing]
        few, own = few - jnp.mean(few, axis=0, keepdims=True), own - jnp.mean(own)
        gram = few.T @ few
        ridge = 1e-8 * jnp.trace(gram) / gram.shape[0] + jnp.finfo(gram.dtype).tiny
        slopes = jnp.linalg.solve(gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype), few.T @ own)
        rest = values - controls @ slopes
        ways = [_mean_and_error(values), _mean_and_error(rest)]
        better = ways[1][1] < ways[0][1]
        return jnp.where(better, ways[1][0], ways[0][0]), jnp.where(better, ways[1][1], ways[0][1])

    enough = t * n >= _DRAWS_A_CONTROL * 2 * d
    inverse_root = jax.vmap(metric.unwhiten, 1, 1)(jnp.eye(d, dtype=points.dtype)) if enough else None

    def of_coordinate(i: Array) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        values = centred[:, :, i]
        if inverse_root is None:
            return *_mean_and_error(values), *_mean_and_error(values**2)
        offset, offset_error = corrected(values, pulled)
        products = values[:, :, None] * pulled + inverse_root[i][None, None]  # E[(x_i − m) R⁻ᵀs] = −(row i of R⁻¹)
        variance, variance_error = corrected(values**2, jnp.concatenate([products, pulled], axis=2))
        return offset, offset_error, variance - offset**2, variance_error

    offsets, offset_errors, variances, variance_errors = jax.lax.map(of_coordinate, jnp.arange(d))
    plain = jnp.mean(centred**2, axis=(0, 1))
    sound = (variances > plain / 4) & (variances < 4 * plain)  # else the regression has failed
    return Estimates(
        plain_mean + jnp.where(sound, offsets, 0), jnp.where(sound, variances, plain), offset_errors, variance_errors
    )


def _mean_and_error(values: Float[Array, "t n"]) -> tuple[Scalar, Scalar]:
    own = jnp.mean(values, axis=0)
    return jnp.mean(own), jnp.std(own, ddof=1) / own.shape[0] ** 0.5
