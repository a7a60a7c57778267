"""Measures of the particles' quality: discrepancies of (n, d) arrays.

Points may be arrays of JAX or NumPy or lists of rows; integers are converted to floating point.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.arrays import as_points, in_one_precision
from ..core.particles import Scored
from ..core.programs import compiled
from ..core.types import Points, Scalar, Vector, check_choice
from .matrix import AbstractMatrixKernel, as_matrix_kernel, check_scalar_kernel
from .radial import mean_values
from .scalar import RBF, AbstractScalarKernel


def stein_ratio(points: Any, scores: Any) -> Scalar:
    """R = −(1/((n−1)d)) Σ_i (x_i − x̄)·s(x_i), whose expectation at exact draws is 1 (Stein's identity for f(x) = x).

    Particles that are too close together have R < 1, so R detects variance collapse at no cost. R near 1 is necessary,
    not sufficient: modes without particles do not change R, and outliers make it noisy. NaN for a single particle.

    Args:
        points: the particles, (n, d).
        scores: ∇log p at the particles.
    """
    points, scores = _with_scores(points, scores)
    n, d = points.shape
    centered = points - jnp.mean(points, axis=0, keepdims=True)
    return -jnp.sum(centered * scores) / ((n - 1) * d) if n > 1 else jnp.full((), jnp.nan, points.dtype)


def ksd2(
    points: Any,
    scores: Any,
    kernel: AbstractMatrixKernel | AbstractScalarKernel | None = None,
    statistic: Literal["U", "V"] = "V",
) -> Scalar:
    """The squared kernel Stein discrepancy between the particles and the target with these `scores`.

    KSD² = E_{x,y} of the Stein kernel (K(x, y) P_x) P_y = E_x [s·φ + ∇·φ] with φ the velocity of the same points,
    Eq. (4) at the optimal direction of Eq. (9). For a matrix-valued kernel it is unchanged by a one-to-one map when the
    kernel changes with it.

    Args:
        points: the particles, (n, d).
        scores: ∇log p at the particles.
        kernel: scalar (Liu, Lee and Jordan, 2016) or matrix-valued; RBF with the median bandwidth by default. A
            bandwidth rule is evaluated at `points`.
        statistic: "V" averages over all pairs and is never negative; "U" leaves out i = j, and has mean 0 at exact
            draws for a kernel that does not depend on the draws.
    """
    check_choice("statistic", statistic, ("U", "V"))
    points, scores = _with_scores(points, scores)
    if statistic == "U" and points.shape[0] < 2:
        raise ValueError("`statistic` 'U' needs at least two particles, got 1.")
    matrix_kernel = as_matrix_kernel(RBF() if kernel is None else kernel)
    matrix_kernel.check(points.shape[1])
    return _ksd2(points, scores, matrix_kernel, statistic)


@compiled
def _ksd2(points: Points, scores: Points, kernel: AbstractMatrixKernel, statistic: Literal["U", "V"]) -> Scalar:
    n, adapted = points.shape[0], kernel.adapt(points)
    source = Scored.uniform(points, scores)
    total = jnp.mean(_stein_operator(adapted, points, scores, source))
    if statistic == "V":
        return total

    def with_itself(point: Vector, score: Vector) -> Scalar:
        alone = Scored(point[None], score[None], jnp.ones((1,), point.dtype))
        return _stein_operator(adapted, point[None], score[None], alone)[0]

    diagonal = jnp.sum(jax.vmap(with_itself)(points, scores))
    return (n**2 * total - diagonal) / (n * (n - 1))


def _with_scores(points: Any, scores: Any) -> tuple[Points, Points]:
    """Convert points and scores to arrays of the same shape and precision."""
    points, scores = in_one_precision(as_points("points", points), as_points("scores", scores))
    if points.shape != scores.shape:
        raise ValueError(f"`scores` must have the shape of `points`, {points.shape}, got {scores.shape}.")
    return points, scores


def _stein_operator(kernel: AbstractMatrixKernel, points: Points, scores: Points, source: Scored) -> Float[Array, " n"]:
    """s·φ + ∇·φ, Eq. (4), for φ the velocity of `source`."""
    return jnp.sum(scores * kernel.velocity(points, source), axis=1) + kernel.divergence(points, source)


def mmd2(points: Any, reference: Any, kernel: Any = None, biased: bool = True) -> Scalar:
    """The squared maximum mean discrepancy between two samples (Gretton et al., 2012).

    Args:
        points: one sample, (n, d).
        reference: the other sample, (m, d), such as exact draws.
        kernel: RBF with the median bandwidth of `reference` by default; a bandwidth rule is evaluated at `reference`,
            so that all samples compared with it are measured by the same kernel.
        biased: average over all pairs (never negative); `False` leaves out the pairs of a point with itself.
    """
    points, reference = in_one_precision(as_points("points", points), as_points("reference", reference))
    smaller = min(points.shape[0], reference.shape[0])
    if points.shape[1] != reference.shape[1]:
        raise ValueError(
            f"`points` and `reference` must have one dimension, got {points.shape[1]} and {reference.shape[1]}."
        )
    if not biased and smaller < 2:
        raise ValueError(f"`biased=False` needs at least two points in each sample, got {smaller} in one of them.")
    if kernel is not None:
        check_scalar_kernel("kernel", kernel)
    return _mmd2(points, reference, RBF() if kernel is None else kernel, biased)


@compiled
def _mmd2(points: Points, reference: Float[Array, "m d"], kernel: AbstractScalarKernel, biased: bool) -> Scalar:
    adapted = kernel.adapt(reference)

    def mean(a: Array, b: Array) -> Scalar:
        return jnp.mean(mean_values(adapted, a, b))

    def within(a: Array) -> Scalar:
        size = a.shape[0]
        if biased:
            return mean(a, a)
        at_zero = adapted.profile(jnp.zeros((), a.dtype))[0]
        return (size * mean(a, a) - at_zero) / (size - 1)

    return within(points) + within(reference) - 2 * mean(points, reference)
