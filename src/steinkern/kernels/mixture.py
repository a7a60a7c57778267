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
from .distance import squared_distances
from .matrix import AbstractMatrixKernel, Isotropic, Preconditioned, tilted_velocity
from .radial import DENSE_PAIRS
from .radial.ring import devices_in_ring
from .radial.sums import dot

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
        if isinstance(temperature, AbstractBandwidth):
            if weighting == "euclidean":
                temperature = temperature(points)
            else:
                temperature = jnp.mean(jax.vmap(temperature)(_whitened(metrics, points, anchors)))
        return cls(_adapt(base, metrics, points, anchors), anchors, temperature, weighting)

    def log_weights(self, x: Vector) -> Float[Array, " l"]:
        """Log w_l(x), Eq. (17), in log space throughout."""

        def exponent(metric: AbstractMetric, anchor: Vector) -> Array:
            offset = x - anchor
            square = jnp.sum(offset**2) if self.weighting == "euclidean" else metric.quadratic(offset)
            return -0.5 * square / cast_like(self.temperature, x)

        return jax.nn.log_softmax(jax.vmap(exponent)(self.parts.metric, self.anchors) + self._log_scales())

    def __call__(self, x: Vector, y: Vector) -> Matrix:
        each = jax.vmap(lambda part: part(x, y))(self.parts)
        return jnp.einsum("l,lij->ij", jnp.exp(self.log_weights(x) + self.log_weights(y)), each)

    def velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        pairs = self.anchors.shape[0] * at.shape[0] * source.points.shape[0]
        if _is_plain(self.parts.base) and pairs <= 4 * DENSE_PAIRS and devices_in_ring(source.points.shape[0]) == 1:
            return self._radial_velocity(at, source)
        log_weights = self._log_weights(source.points, self._whitened(source.points))
        tilts = self._tilts(source.points, log_weights)

        def one(part: Preconditioned, log_weight: Array, tilt: Array) -> Array:
            return tilted_velocity(part, at, source, log_weight, tilt)

        # Eq. (18): l m d. So many anchors at a time that their matrices of distances stay within bounds.
        together = max(1, 4 * DENSE_PAIRS // (at.shape[0] * source.points.shape[0]))
        if together >= self.anchors.shape[0]:
            each = jax.vmap(one)(self.parts, log_weights, tilts)
        else:
            each = jax.lax.map(lambda own: one(*own), (self.parts, log_weights, tilts), batch_size=together)
        return self._mean(each, self._log_weights(at, self._whitened(at)))

    def adapt(self, points: Points) -> "Mixture":
        parts = jax.vmap(lambda part: part.adapt(points))(self.parts)
        return Mixture(parts, self.anchors, self.temperature, self.weighting)

    def _radial_velocity(self, at: Float[Array, "m d"], source: Scored) -> Float[Array, "m d"]:
        """Eq. (18) for k(r²) I around every anchor, with three applications of each metric to each point.

        Brought back by R⁻¹, the drive of anchor l is Q_l⁻¹ of its tilted scores, and the repulsion along R(x − y) goes
        along x − y. So points are whitened for the distances, multiplied by Q_l for the tilts, and Q_l⁻¹ is applied.
        """
        centre = _centre(self.anchors)
        there, here = self._whitened(source.points), self._whitened(at)
        log_weights = self._log_weights(source.points, there)
        tilted = source.scores[None] + self._tilts(source.points, log_weights)  # l n d
        r2 = jax.vmap(squared_distances)(here, there)  # l m n
        values, slopes = jax.vmap(lambda base, own: base.scalar.profile(own))(self.parts.base, r2)
        weights = jnp.exp(self._log_weights(at, here)[:, :, None] + log_weights[:, None]) * source.weights[None, None]
        values, slopes = weights * values, weights * slopes
        solved = jax.vmap(lambda metric, own: metric.solve(own))(self.parts.metric, tilted)
        drive = jnp.tensordot(values, solved, axes=((0, 2), (0, 1)), precision="highest")
        slopes = jnp.sum(slopes, axis=0)
        repulsion = dot(slopes, source.points - centre) - jnp.sum(slopes, axis=1)[:, None] * (at - centre)
        return drive + 2 * repulsion

    def _whitened(self, points: Points) -> Float[Array, "l n d"]:
        return _whitened(self.parts.metric, points, self.anchors)

    def _log_weights(self, points: Points, whitened: Float[Array, "l n d"]) -> Float[Array, "l n"]:
        """Log w_l at every point, from the points in every anchor's metric."""
        if self.weighting == "euclidean":
            squares = squared_distances(self.anchors, points)
        else:
            metrics, offsets = self.parts.metric, self.anchors - _centre(self.anchors)
            own = jax.vmap(lambda metric, anchor: metric.whiten(anchor))(metrics, offsets)
            squares = jnp.sum((whitened - own[:, None]) ** 2, axis=2)
        exponents = -0.5 * squares / cast_like(self.temperature, points)
        return jax.nn.log_softmax(exponents + self._log_scales()[:, None], axis=0)

    def _tilts(self, points: Points, log_weights: Float[Array, "l n"]) -> Float[Array, "l n d"]:
        """∇log w_l = g_l − Σ_m w_m g_m at every point, with g_l = −Q_l (x − z_l)/T."""
        centre = _centre(self.anchors)
        anchors = (self.anchors - centre) / cast_like(self.temperature, points)
        if self.weighting == "euclidean":  # the same x in all g_l: (z_l − Σ_m w_m z_m)/T is left
            return anchors[:, None] - dot(jnp.exp(log_weights).T, anchors)[None]
        offsets = (points - centre) / cast_like(self.temperature, points)

        def pull(metric: AbstractMetric, anchor: Vector) -> Array:
            return metric.multiply(anchor)[None] - metric.multiply(offsets)

        pulls = jax.vmap(pull)(self.parts.metric, anchors)
        return pulls - self._mean(pulls, log_weights)[None]

    def _mean(self, values: Float[Array, "l n d"], log_weights: Float[Array, "l n"]) -> Float[Array, "n d"]:
        """Σ_l w_l v_l at every point."""
        return jnp.einsum("ln,lnd->nd", jnp.exp(log_weights), values, precision="highest")

    def _log_scales(self) -> Float[Array, " l"]:
        logdets = jax.vmap(lambda metric: metric.logdet())(self.parts.metric)
        return 0.5 * logdets if self.weighting == "exact" else jnp.zeros_like(logdets)


def _is_plain(base: AbstractMatrixKernel) -> bool:
    """Whether a kernel is k(r²) I, computed as the library sees fit."""
    return isinstance(base, Isotropic) and base.backend == "auto"


def _centre(anchors: Float[Array, "l d"]) -> Float[Array, "1 d"]:
    """A point near the particles, from which their coordinates keep their digits in a metric."""
    return jnp.mean(anchors, axis=0, keepdims=True)


def _whitened(metrics: AbstractMetric, points: Points, anchors: Float[Array, "l d"]) -> Float[Array, "l n d"]:
    """R_l (x − centre). Bandwidth, temperature, weights and velocity all ask for it: a compiled step has it once."""
    offsets = points - _centre(anchors)
    return jax.vmap(lambda metric: metric.whiten(offsets))(metrics)


def _adapt(
    base: AbstractMatrixKernel, metrics: AbstractMetric, points: Points, anchors: Float[Array, "l d"]
) -> Preconditioned:
    """The kernels around all anchors as one batch, with bandwidths adapted to the points."""
    if not _is_plain(base):  # it may depend on where the origin is
        return jax.vmap(lambda metric: Preconditioned(base, metric).adapt(points))(metrics)

    def one(metric: AbstractMetric, whitened: Points) -> Preconditioned:
        return Preconditioned(base.adapt(whitened), metric)

    return jax.vmap(one)(metrics, _whitened(metrics, points, anchors))
