"""A posterior whose minibatches have little noise near one point."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.types import Batch, PyTree, Scalar, Vector, cast_like
from .target import BoundTarget, Posterior


class CenteredPosterior(Posterior):
    """A `Posterior` whose log-likelihood on a batch is a second-order expansion on all rows plus a correction.

    With the expansion T_i of log-likelihood i around the center c, and T = Σ_i T_i over all N rows,

        Σ_i ℓ_i(x) ≈ T(x) + (N/b) Σ_batch [ℓ_i(x) − T_i(x)].

    The estimate is unbiased. Its noise is that of the third-order remainders, which are small where the posterior is
    narrow compared with the curvature's changes, so nearly all noise of the scores vanishes within the mass. On all
    rows it is the plain log-likelihood.

    Args:
        center: c, in unconstrained coordinates.
        gradient: of the log-likelihood of all rows at c.
        hessian: of the log-likelihood of all rows at c.
    """

    center: Float[Array, " d"] = eqx.field(kw_only=True)
    gradient: Float[Array, " d"] = eqx.field(kw_only=True)
    hessian: Float[Array, "d d"] = eqx.field(kw_only=True)

    def log_density(self, bound: BoundTarget, vector: Vector, batch: Batch) -> Scalar:
        """The estimate of the log density on a batch, up to a constant."""
        center, gradient, hessian = (cast_like(each, vector) for each in (self.center, self.gradient, self.hessian))
        offset = vector - center
        product = jnp.matmul(hessian, offset, precision="highest")
        expansion = jnp.vdot(gradient, offset) + 0.5 * jnp.vdot(offset, product)

        def remainder(example: PyTree) -> Scalar:
            """ℓ(x) less its expansion around the center: small, so that float32 holds sums over many rows."""

            def along(point: Vector) -> Scalar:
                return bound.log_example(point, example)

            def slope(point: Vector) -> tuple[Scalar, Scalar]:
                return jax.jvp(along, (point,), (offset,))

            (value, first), (_, second) = jax.jvp(slope, (center,), (offset,))
            return (along(vector) - value) - first - 0.5 * second

        remainders = jnp.sum(bound.over_examples(remainder, batch)) * bound.data_scale(batch, vector.dtype)
        return bound.log_base(vector) + (expansion + remainders)


def center_posterior(target: Posterior, center: Any, gradient: Any, hessian: Any) -> CenteredPosterior:
    """A posterior of the same prior and likelihood, centered at a point."""
    return CenteredPosterior(
        target.log_prior, target.log_likelihood, target.num_data, support=target.support, shared=target.shared,
        center=center, gradient=gradient, hessian=hessian,
    )  # fmt: skip
