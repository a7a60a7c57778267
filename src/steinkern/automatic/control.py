"""Stein's identity against Monte Carlo noise: zero-variance control variates (Assaraf and Caffarel; Mira et al., 2013).

E[s] = 0 and E[(x_i − m) s_k] = −δ_ik at the target, so what a sample's own means of them are is noise, and moves with
the noise in the mean and covariance of x. Regressing the one on the other takes it out: all of it for a Gaussian. Both
hold where the density vanishes at the edges of its support; a correction that is larger than noise can be is refused.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Matrix, Scalar, Vector
from ..metric import AbstractMetric

_DRAWS_A_CONTROL = 20
_MOST_DIMENSIONS = 200  # beyond, the regressions cost more than the chains
_LARGEST = 5000  # draws that a regression looks at
_NOISE = 4.0  # standard errors that a correction may have


class Estimates(NamedTuple):
    """Moments of u = R(x − centre), in which the target's covariance is near the identity."""

    centre: Vector
    mean: Vector
    covariance: Matrix
    mean_error: Vector
    """The standard errors of the means of x, coordinate by coordinate."""
    identity_error: Scalar
    """How far the chains are from E[s] = 0, in standard errors, where that is far in standard deviations as well."""


@eqx.filter_jit
def moments_by_stein(points: Float[Array, "t n d"], scores: Float[Array, "t n d"], metric: AbstractMetric) -> Estimates:
    """Mean and covariance, each entry with or without the correction, whichever has the smaller error.

    Whitened coordinates keep narrow directions: an error of a hundredth in an entry is one of a hundredth in the spread
    along every direction.

    Args:
        points: of the chains.
        scores: ∇log p there.
        metric: near the inverse of the covariance.
    """
    t, n, d = points.shape
    centre = jnp.mean(points, axis=(0, 1))
    white = jax.vmap(jax.vmap(metric.whiten))(points - centre[None, None])
    pulled = jax.vmap(jax.vmap(metric.pull_score))(scores)
    spacing = max(1, t * n // _LARGEST)
    enough = t * n >= _DRAWS_A_CONTROL * 2 * d and d <= _MOST_DIMENSIONS

    def corrected(values: Float[Array, "t n k"], controls: Float[Array, "t n c"]) -> Float[Array, "n k"]:
        """The means of `values` by chain, corrected where that is better."""
        few, own = (part[::spacing].reshape(-1, part.shape[-1]) for part in (controls, values))
        few, own = few - jnp.mean(few, axis=0, keepdims=True), own - jnp.mean(own, axis=0, keepdims=True)
        gram = few.T @ few
        ridge = 1e-8 * jnp.trace(gram) / gram.shape[0] + jnp.finfo(gram.dtype).tiny
        slopes = jnp.linalg.solve(gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype), few.T @ own)
        plain = jnp.mean(values, axis=0)
        better = plain - jnp.mean(controls, axis=0) @ slopes
        apart = jnp.abs(jnp.mean(better, axis=0) - jnp.mean(plain, axis=0))
        accepted = (_error(better) < _error(plain)) & (apart <= _NOISE * _error(plain))
        return jnp.where(accepted[None], better, plain)

    means = corrected(white, pulled) if enough else jnp.mean(white, axis=0)
    mean = jnp.mean(means, axis=0)
    inner = white - mean[None, None]
    identity = jnp.eye(d, dtype=points.dtype)

    def row(i: Array) -> Vector:
        products = inner[:, :, i, None] * pulled + identity[i][None, None]  # E[u_i s_k] = −δ_ik
        return jnp.mean(corrected(inner[:, :, i, None] * inner, jnp.concatenate([products, pulled], axis=2)), axis=0)

    plain = jnp.tensordot(inner, inner, axes=((0, 1), (0, 1))) / (t * n)
    covariance = plain
    if enough:
        rows = jax.lax.map(row, jnp.arange(d))
        covariance = (rows + rows.T) / 2
        values, vectors = jnp.linalg.eigh(covariance)
        smallest = jnp.linalg.eigvalsh(plain)[0] / 2
        covariance = (vectors * jnp.maximum(values, smallest)[None]) @ vectors.T
    own = jnp.mean(pulled, axis=0)
    far = jnp.abs(jnp.mean(own, axis=0))
    off = jnp.where(far > 0.1, far / jnp.maximum(_error(own), 1e-30), 0)
    return Estimates(centre, mean, covariance, _error(jax.vmap(metric.unwhiten)(means)), jnp.max(off))


def _error(by_chain: Float[Array, "n k"]) -> Float[Array, " k"]:
    return jnp.std(by_chain, axis=0, ddof=1) / by_chain.shape[0] ** 0.5
