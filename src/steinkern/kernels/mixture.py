"""The mixture of preconditioned kernels, Eqs. (16) to (18): a metric of its own around every anchor."""

from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.metric import AbstractMetric
from ..core.particles import Scored
from ..core.types import Matrix, Points, Vector, as_number, cast_like, check_choice
from .bandwidth import AbstractBandwidth
from .matrix import AbstractMatrixKernel, Preconditioned, tilted_velocity
from .radial import DENSE_PAIRS

Weighting: TypeAlias = Literal["exact", "no_determinant", "euclidean"]
WEIGHTINGS = get_args(Weighting)


class Mixture(AbstractMatrixKernel):
    """K(x, y) = Σ_l w_l(x) w_l(y) K_{Q_l}(x, y), Eq. (16), with the Gaussian responsibilities w_l of Eq. (17).

    log w_l(x) = log softmax_l( −‖x − z_l‖²_{Q_l} / 2T + ½ log det Q_l ). The anchors z_l are constants in ∇w even when
    they are the particles. m identical anchors give K_Q / m: Eq. (16) is not normalised in m.

    Args:
        parts: the l constant kernels K_{Q_l} of Eqs. (12) and (13), as one batch.
        anchors: the points z_l.
        temperature: T widens every Gaussian to covariance T Q_l⁻¹. 1 is Eq. (17). In many dimensions the exponents are
            of order d and the weights one-hot, so that a particle sees its own anchor only; T of order d couples them.
            `Mixture.of` also takes a rule such as `Median()`, which couples them whatever the dimension and scale
            where the weights leave the determinants out.
        weighting: "exact" is Eq. (17); "no_determinant" leaves ½ log det Q_l out; "euclidean" puts Q_l = I in the
            weights alone, as the released code of the paper does for networks.
    """

    parts: Preconditioned
    anchors: Float[Array, "l d"]
    temperature: Any = eqx.field(default=1.0, converter=as_number)
    weighting: Weighting = eqx.field(default="exact", static=True)

    def __check_init__(self) -> None:
        check_choice("weighting", self.weighting, WEIGHTINGS)

    @classmethod
    def of(
        cls,
        base: AbstractMatrixKernel,
        metrics: AbstractMetric,
        anchors: Float[Array, "l d"],
        points: Points,
        temperature: Any = 1.0,
        weighting: Weighting = "exact",
    ) -> "Mixture":
        """The mixture with `base` around every anchor, its bandwidth adapted to `points` in each anchor's metric.

        A temperature that is a bandwidth rule is read off the same distances as the weights use, as the mean over the
        anchors.
        """
        parts = jax.vmap(lambda metric: Preconditioned(base, metric).adapt(points))(metrics)
        if isinstance(temperature, AbstractBandwidth):
            temperature = _typical(temperature, metrics, points, weighting)
        return cls(parts, anchors, temperature, weighting)

    def log_weights(self, x: Vector) -> Float[Array, " l"]:
        """Log w_l(x), Eq. (17), in log space throughout."""

        def exponent(metric: AbstractMetric, anchor: Vector) -> Array:
            return -0.5 * self._squared_distance(metric, x - anchor) + self._log_scale(metric)

        return jax.nn.log_softmax(jax.vmap(exponent)(self.parts.metric, self.anchors))

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        each = jax.vmap(lambda part: part(x, y))(self.parts)
        return jnp.einsum("l,lij->ij", jnp.exp(self.log_weights(x) + self.log_weights(y)), each)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        log_weights, tilts = self._tilts(source.points)  # l n, l n d

        def one(part: Preconditioned, log_weight: Array, tilt: Array) -> Array:
            return tilted_velocity(part, at, source, log_weight, tilt)

        # Eq. (18): l m d. So many anchors at a time that their matrices of distances stay within bounds.
        together = max(1, 4 * DENSE_PAIRS // (at.shape[0] * source.points.shape[0]))
        if together >= self.anchors.shape[0]:
            each = jax.vmap(one)(self.parts, log_weights, tilts)
        else:
            each = jax.lax.map(lambda part: one(*part), (self.parts, log_weights, tilts), batch_size=together)
        return jnp.einsum("ml,lmd->md", jnp.exp(jax.vmap(self.log_weights)(at)), each, precision="highest")

    def adapt(self, points: Points) -> "Mixture":
        parts = jax.vmap(lambda part: part.adapt(points))(self.parts)
        return Mixture(parts, self.anchors, self.temperature, self.weighting)

    def _tilts(self, points: Points) -> tuple[Float[Array, "l n"], Float[Array, "l n d"]]:
        """Log w_l and ∇log w_l at every point: ∇log w_l = g_l − Σ_m w_m g_m with g_l = −Q_l (x − z_l)/T."""
        log_weights = jax.vmap(self.log_weights)(points).T
        if self.weighting == "euclidean":  # the same x in all g_l: (z_l − Σ_m w_m z_m)/T is left
            mean = jnp.matmul(jnp.exp(log_weights).T, self.anchors, precision="highest")
            return log_weights, (self.anchors[:, None] - mean[None]) / cast_like(self.temperature, points)

        def pull(metric: AbstractMetric, anchor: Vector) -> Array:
            return jax.vmap(lambda x: -metric.multiply(x - anchor) / cast_like(self.temperature, x))(points)

        pulls = jax.vmap(pull)(self.parts.metric, self.anchors)  # l n d
        mean = jnp.einsum("ln,lnd->nd", jnp.exp(log_weights), pulls, precision="highest")
        return log_weights, pulls - mean[None]

    def _squared_distance(self, metric: AbstractMetric, offset: Vector) -> Array:
        square = jnp.sum(offset**2) if self.weighting == "euclidean" else metric.quadratic(offset)
        return square / cast_like(self.temperature, offset)

    def _log_scale(self, metric: AbstractMetric) -> Array:
        logdet = metric.logdet()
        return 0.5 * logdet if self.weighting == "exact" else jnp.zeros_like(logdet)


def _typical(rule: AbstractBandwidth, metrics: AbstractMetric, points: Points, weighting: Weighting) -> Array:
    if weighting == "euclidean":
        return rule(points)
    return jnp.mean(jax.vmap(lambda metric: rule(jax.vmap(metric.whiten)(points)))(metrics))
