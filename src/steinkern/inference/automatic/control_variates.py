"""Stein's identity against Monte Carlo noise: zero-variance control variates (Assaraf and Caffarel; Mira et al., 2013).

E[s] = 0 and E[(x_i − m) s_k] = −δ_ik at the target, so what a sample's own means of them are is noise, and moves with
the noise in the mean and covariance of x. Regressing the one on the other takes it out: all of it for a Gaussian. Both
hold where the density is differentiable and vanishes at the edges of its support. Where chains have met an edge, or a
mean of s is farther from 0 than its own noise allows, nothing is corrected, and the stated errors are those of plain
means. Where that is so of a product (x_i − m) s_k alone, as with chains that have not settled, the correction is taken,
and the stated error is no less than it and than the plain one.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...core.metric import AbstractMetric
from ...core.programs import compiled
from ...core.types import Matrix, Scalar, Vector

_DRAWS_A_CONTROL = 20
_MOST_DIMENSIONS = 200  # beyond, the regressions cost more than the chains
_LARGEST = 5000  # draws that a regression looks at
_NOISE = 4.0  # standard errors that a correction may have
_SURE = 3.0  # standard errors that the mean of one control may be from 0, and for many the same probability


class Estimates(NamedTuple):
    """Moments of u = R(x − centre), in which the target's covariance is near the identity."""

    centre: Vector
    mean: Vector
    covariance: Matrix
    mean_error: Vector
    """The standard errors of the means of x, coordinate by coordinate."""
    variance_error: Vector
    """The standard errors of the variances of x, likewise."""
    identity_error: Scalar
    """How far the chains are from E[s] = 0, in standard errors, where that is far in standard deviations as well."""


@compiled
def moments_by_stein(
    points: Float[Array, "t n d"], scores: Float[Array, "t n d"], metric: AbstractMetric, smooth: Any = True
) -> Estimates:
    """Mean and covariance, each entry with or without the correction, whichever has the smaller error.

    Whitened coordinates keep narrow directions: an error of a hundredth in an entry is one of a hundredth in the spread
    along every direction.

    Args:
        points: of the chains.
        scores: ∇log p there.
        metric: near the inverse of the covariance.
        smooth: whether nothing speaks against Stein's identity: chains do not meet an edge of the density.
    """
    t, n, d = points.shape
    centre = jnp.mean(points, axis=(0, 1))
    white = jax.vmap(jax.vmap(metric.whiten))(points - centre[None, None])
    pulled = jax.vmap(jax.vmap(metric.pull_score))(scores)
    spacing = max(1, t * n // _LARGEST)
    enough = t * n >= _DRAWS_A_CONTROL * 2 * d and d <= _MOST_DIMENSIONS
    holds = smooth & _vanishes(jnp.mean(pulled, axis=0))

    def corrected(
        values: Float[Array, "t n k"], controls: Float[Array, "t n c"]
    ) -> tuple[Float[Array, "n k"], Float[Array, " k"]]:
        """The means of `values` by chain, corrected where that is better, and the least error to state of them."""
        few, own = (part[::spacing].reshape(-1, part.shape[-1]) for part in (controls, values))
        few, own = few - jnp.mean(few, axis=0, keepdims=True), own - jnp.mean(own, axis=0, keepdims=True)
        gram = few.T @ few
        ridge = 1e-8 * jnp.trace(gram) / gram.shape[0] + jnp.finfo(gram.dtype).tiny
        slopes = jnp.linalg.solve(gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype), few.T @ own)
        plain = jnp.mean(values, axis=0)
        offsets = jnp.mean(controls, axis=0)
        better = plain - offsets @ slopes
        apart = jnp.abs(jnp.mean(better, axis=0) - jnp.mean(plain, axis=0))
        accepted = (_error(better) < _error(plain)) & (apart <= _NOISE * _error(plain)) & holds
        doubtful = accepted & ~_vanishes(offsets)
        least = jnp.where(doubtful, jnp.maximum(apart, _error(plain)), 0)
        return jnp.where(accepted[None], better, plain), least

    means = corrected(white, pulled)[0] if enough else jnp.mean(white, axis=0)
    mean = jnp.mean(means, axis=0)
    inner = white - mean[None, None]
    identity = jnp.eye(d, dtype=points.dtype)

    def row(i: Array) -> tuple[Float[Array, "n d"], Float[Array, " d"]]:
        products = inner[:, :, i, None] * inner
        controls = inner[:, :, i, None] * pulled + identity[i][None, None]  # E[u_i s_k] = −δ_ik
        return corrected(products, jnp.concatenate([controls, pulled], axis=2))

    plain = jnp.tensordot(inner, inner, axes=((0, 1), (0, 1))) / (t * n)
    covariance, variance_error = plain, _error(jnp.mean(jax.vmap(jax.vmap(metric.unwhiten))(inner) ** 2, axis=0))
    if enough:
        rows, least = jax.lax.map(row, jnp.arange(d))
        covariance = jnp.mean(rows, axis=1)
        covariance = (covariance + covariance.T) / 2
        values, vectors = jnp.linalg.eigh(covariance)
        smallest = jnp.linalg.eigvalsh(plain)[0] / 2
        covariance = (vectors * jnp.maximum(values, smallest)[None]) @ vectors.T
        back = jax.vmap(metric.unwhiten)(identity)  # its row a is what a step along u_a is in x
        by_chain = rows.swapaxes(0, 1)
        variance_error = _error(jax.lax.map(lambda own: jnp.sum(back * (own @ back), axis=0), by_chain))
        variance_error = jnp.maximum(variance_error, jnp.sqrt(jnp.sum(back**2 * (least**2 @ back**2), axis=0)))
    own = jnp.mean(pulled, axis=0)
    far = jnp.abs(jnp.mean(own, axis=0))
    off = jnp.where(far > 0.1, far / jnp.maximum(_error(own), 1e-30), 0)
    mean_error = _error(jax.vmap(metric.unwhiten)(means))
    return Estimates(centre, mean, covariance, mean_error, variance_error, jnp.max(off))


def _vanishes(by_chain: Float[Array, "n c"]) -> Bool[Array, ""]:
    """Whether the means of all controls are 0 within their errors."""
    surplus = (1 - NormalDist().cdf(_SURE)) / by_chain.shape[1]
    sure = -NormalDist().inv_cdf(surplus)
    return jnp.all(jnp.abs(jnp.mean(by_chain, axis=0)) <= sure * _error(by_chain))


def _error(by_chain: Float[Array, "n k"]) -> Float[Array, " k"]:
    return jnp.std(by_chain, axis=0, ddof=1) / by_chain.shape[0] ** 0.5
