"""A posterior whose minibatches have little noise near one point."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.types import Batch, PyTree, Scalar, Vector, cast_like
from .target import Posterior


class CentredPosterior(Posterior):
    """A `Posterior` whose log-likelihood on a batch is a second-order expansion on all rows plus a correction.

    With the expansion T_i of log-likelihood i around the centre c, and T = Σ_i T_i over all N rows,

        Σ_i ℓ_i(x) ≈ T(x) + (N/b) Σ_batch [ℓ_i(x) − T_i(x)].

    The estimate is unbiased. Its noise is that of the third-order remainders, which are small where the posterior is
    narrow compared with the curvature's changes, so nearly all noise of the scores vanishes within the mass. On all
    rows it is the plain log-likelihood.

    Args:
        centre: c, in unconstrained coordinates.
        gradient: of the log-likelihood of all rows at c.
        hessian: of the log-likelihood of all rows at c.
    """

    centre: Float[Array, " d"] | None = eqx.field(default=None, kw_only=True)
    gradient: Float[Array, " d"] | None = eqx.field(default=None, kw_only=True)
    hessian: Float[Array, "d d"] | None = eqx.field(default=None, kw_only=True)

    def log_density(self, vector: Vector, batch: Batch = None) -> Scalar:
        """The estimate of the log density on a batch, up to a constant."""
        assert self.centre is not None
        assert self.gradient is not None
        assert self.hessian is not None
        centre, gradient, hessian = (cast_like(part, vector) for part in (self.centre, self.gradient, self.hessian))
        offset = vector - centre
        bend = jnp.matmul(hessian, offset, precision="highest")
        expansion = jnp.vdot(gradient, offset) + 0.5 * jnp.vdot(offset, bend)
        remainders = self.over_examples(lambda example: self._remainder(vector, offset, centre, example), batch)
        likelihood = expansion + jnp.sum(remainders) * self.data_scale(batch, vector.dtype)
        return cast_like(self.power, vector) * (self.log_base(vector) + likelihood)

    def _remainder(self, vector: Vector, offset: Vector, centre: Vector, example: PyTree) -> Scalar:
        """ℓ(x) less its second-order expansion around the centre, up to a constant."""

        def along(point: Vector) -> Scalar:
            return self.log_example(point, example)

        def slope(point: Vector) -> Scalar:
            return jax.jvp(along, (point,), (offset,))[1]

        first, second = jax.jvp(slope, (centre,), (offset,))
        return along(vector) - first - 0.5 * second


def centre_posterior(target: Posterior, centre: Any, gradient: Any, hessian: Any) -> CentredPosterior:
    """A posterior of the same prior and likelihood, centred at a point."""
    return CentredPosterior(
        target.log_prior, target.log_likelihood, target.num_data,
        support=target.support, space=target.space, power=target.power, shared=target.shared,
        centre=centre, gradient=gradient, hessian=hessian,
    )  # fmt: skip
