"""The mixture of preconditioned kernels, Eqs. (16) to (18): a metric of its own around every anchor."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.block_metric import sum_of_solved
from ..core.metric import AbstractMetric, split_columns
from ..core.particles import Scored
from ..core.reductions import sum_unfused
from ..core.types import Matrix, Points, Vector, as_number, cast_like, check_choice
from .bandwidth import AbstractBandwidth, Median
from .distance import squared_distances
from .in_metric import (
    InMetric,
    adapt_in_metric,
    bandwidth_in_metric,
    batched_axes,
    distances_in_metric,
    distances_within_metric,
    in_metric,
    in_metrics,
)
from .matrix import AbstractMatrixKernel, Isotropic, tilted_velocity
from .preconditioned import Preconditioned, reads_distances_alone
from .radial import DENSE_PAIRS, centre_of
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
        seen = _in_metrics(metrics, points) if reads_distances_alone(base) or isinstance(temperature, Median) else None
        if isinstance(temperature, AbstractBandwidth):
            if weighting == "euclidean":
                temperature = temperature(points)
            elif isinstance(temperature, Median):
                rule = temperature
                assert seen is not None
                axes = (batched_axes(seen),)
                temperature = jnp.mean(jax.vmap(lambda own: bandwidth_in_metric(rule, own), in_axes=axes)(seen))
            else:
                temperature = jnp.mean(jax.vmap(temperature)(_whiten(metrics, points, anchors)))
        return cls(_adapt(base, metrics, points, anchors, seen), anchors, temperature, weighting)

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
        there = self._see(source.points, source.points)
        here = there if at is source.points else self._see(at, source.points)
        pairs = self.anchors.shape[0] * at.shape[0] * source.points.shape[0]
        few = pairs <= 4 * DENSE_PAIRS and devices_in_ring(source.points.shape[0]) == 1
        if few and reads_distances_alone(self.parts.base):
            return self._radial_velocity(at, source, here, there)
        metric, order = self.parts.metric, self.parts.metric.arrange
        tilts = jnp.concatenate(self._tilts(order(source.points), order(self.anchors), there), axis=2)

        def one(part: Preconditioned, log_weight: Array, tilt: Array) -> Array:
            return tilted_velocity(part, at, source, log_weight, tilt)

        # Eq. (18): l m d. So many anchors at a time that their matrices of distances stay within bounds.
        together = max(1, 4 * DENSE_PAIRS // (at.shape[0] * source.points.shape[0]))
        all_ = (self.parts, there.log_weights, metric.restore(tilts))
        if together >= self.anchors.shape[0]:
            each = jax.vmap(one)(*all_)
        else:
            each = jax.lax.map(lambda own: one(*own), all_, batch_size=together)
        return jnp.einsum("ln,lnd->nd", jnp.exp(here.log_weights), each, precision="highest")

    def adapt(self, points: Points) -> "Mixture":
        parts = jax.vmap(lambda part: part.adapt(points))(self.parts)
        return Mixture(parts, self.anchors, self.temperature, self.weighting)

    def _radial_velocity(
        self, at: Float[Array, "m d"], source: Scored, here: "_Seen", there: "_Seen"
    ) -> Float[Array, "m d"]:
        """Eq. (18) for k(r²) I around every anchor, with two applications of each metric to each point.

        Brought back by R⁻¹, the drive of anchor l is Q_l⁻¹ of its tilted scores, and the repulsion along R(x − y) goes
        along x − y. Q_l times the points gives both their distances and their tilts; Q_l⁻¹ is the second application.
        """
        metric, centre = self.parts.metric, centre_of(source.points)
        points, scores, anchors = (metric.arrange(array) for array in (source.points, source.scores, self.anchors))
        if here is there:
            r2 = jax.vmap(distances_within_metric, in_axes=(batched_axes(there.points),))(there.points)  # l n n
        else:
            axes = tuple(batched_axes(own.points) for own in (here, there))
            r2 = jax.vmap(distances_in_metric, in_axes=axes)(here.points, there.points)  # l m n
        values, slopes = jax.vmap(lambda base, own: base.scalar.profile(own))(self.parts.base, r2)
        at_weights, weights = jnp.exp(here.log_weights), jnp.exp(there.log_weights) * source.weights[None]  # l m, l n
        offsets = jnp.concatenate([source.points - centre, jnp.ones_like(source.points[:, :1])], axis=1)
        ratio = jax.vmap(lambda base: base.scalar.constant_slope(at.dtype))(self.parts.base)
        if ratio is not None and at.shape[1] < at.shape[0]:  # k' = ratio × k: drive and repulsion in one product
            pushes = 2 * (ratio[:, None] * weights)[:, :, None] * offsets[None]
            pull = metric.restore(jnp.concatenate(self._pulls(points, scores, anchors, weights, there), axis=2))
            sums = _sum_over_anchors(at_weights, values, pushes + jnp.pad(pull, ((0, 0), (0, 0), (0, 1))))
            return sums[:, :-1] - sums[:, -1:] * (at - centre)
        repulsion = 2 * jnp.sum(at_weights[:, :, None] * slopes * weights[:, None], axis=0)
        if self.anchors is source.points:
            pairs = at_weights[:, :, None] * values * weights[:, None]  # l m n
            drive = self._drive(points, scores, anchors, there, pairs)
            if (
                self.weighting != "euclidean"
            ):  # Σ_l Σ_j c_lij (z_l − y_j)/T, the rest of the tilts; its rows add up to 0
                rate = 1 / cast_like(self.temperature, at)
                repulsion = repulsion + rate * (jnp.sum(pairs, axis=2).T - jnp.sum(pairs, axis=0))
        else:  # far from all anchors the tilts of the nearest one cancel exactly
            pulls = self._pulls(points, scores, anchors, weights, there)
            drive = jnp.concatenate([_sum_over_anchors(at_weights, values, own) for own in pulls], axis=1)
        sums = dot(repulsion, offsets)
        return metric.restore(drive) + sums[:, :-1] - sums[:, -1:] * (at - centre)

    def _pulls(
        self, points: Points, scores: Points, anchors: Float[Array, "l d"], weights: Float[Array, "l n"], seen: "_Seen"
    ) -> list[Float[Array, "l n b"]]:
        """Q_l⁻¹ of the tilted scores, times the weights; by block."""
        blocks = self.parts.metric.for_arranged().blocks()
        own_scores = split_columns(scores, [block.size for block in blocks])
        return [
            jax.vmap(lambda metric, vectors: metric.solve(vectors))(block, weights[:, :, None] * (own[None] + tilt))
            for block, own, tilt in zip(blocks, own_scores, self._tilts(points, anchors, seen), strict=True)
        ]

    def _drive(
        self,
        points: Points,
        scores: Points,
        anchors: Float[Array, "l d"],
        seen: "_Seen",
        pairs: Float[Array, "l m n"],
    ) -> Float[Array, "m d"]:
        """Σ_l Σ_j c_lij Q_l⁻¹ (s_j + ∇log w_l(y_j)) with anchors at the particles, less what needs no metric.

        A tilt is g_l − ḡ, of which ḡ(y_j) = Σ_m w_m g_m is the same for all anchors: every metric is applied to the
        same s_j − ḡ_j. Q_l⁻¹ g_l = (z_l − y_j)/T is left to the caller; with Euclidean weights g_l is the same for all
        points.
        """
        blocks = self.parts.metric.for_arranged().blocks()
        sizes = [block.size for block in blocks]
        weights = jnp.exp(seen.log_weights)
        if self.weighting == "euclidean":
            centred = (anchors - jnp.mean(anchors, axis=0, keepdims=True)) / cast_like(self.temperature, points)
            means = split_columns(dot(weights.T, centred), sizes)
            own: list[Array | None] = [*split_columns(centred, sizes)]
        else:
            means = [self._mean_tilt(weights, *pair) for pair in self._products(seen)]
            own = [None] * len(sizes)
        drives = []
        for block, score, mean, offset in zip(blocks, split_columns(scores, sizes), means, own, strict=True):
            drive = sum_of_solved(block, pairs, score - mean)
            if offset is not None:
                each = jax.vmap(lambda metric, vector: metric.solve(vector))(block, offset[:, None])
                drive = drive + dot(jnp.sum(pairs, axis=2).T, each[:, 0])
            drives.append(drive)
        return jnp.concatenate(drives, axis=1)

    def _see(self, points: Float[Array, "m d"], cloud: Points) -> "_Seen":
        """The points in every anchor's metric, and their weights. Coordinates are from the centre of the cloud."""
        metrics, centre = self.parts.metric, centre_of(cloud)
        seen = _in_metrics(metrics, points, centre)
        if self.anchors is points:
            n = points.shape[0]
            anchors = jax.tree.map(
                lambda leaf: leaf.reshape(-1, 1, leaf.shape[-1])[:: n + 1 if leaf.ndim == 3 else 1], seen
            )
        else:
            offsets = metrics.arrange(self.anchors - centre)[:, None]
            anchors = jax.vmap(lambda metric, offset: in_metric(metric.for_arranged(), offset))(metrics, offsets)
        if self.weighting == "euclidean":
            squares = squared_distances(self.anchors, points)
        elif self.anchors is points and points.shape[1] >= points.shape[0]:  # the distances that the velocity needs
            r2 = jax.vmap(distances_within_metric, in_axes=(batched_axes(seen),))(seen)
            squares = jnp.diagonal(r2, axis1=0, axis2=1).T
        else:
            squares = jax.vmap(lambda own, anchor: own.square_from(anchor), in_axes=(batched_axes(seen), 0))(
                seen, anchors
            )
        exponents = -0.5 * squares / cast_like(self.temperature, points)
        return _Seen(seen, anchors, jax.nn.log_softmax(exponents + self._log_scales()[:, None], axis=0))

    def _tilts(self, points: Points, anchors: Float[Array, "l d"], seen: "_Seen") -> list[Float[Array, "l n b"]]:
        """∇log w_l = g_l − Σ_m w_m g_m at every point, with g_l = −Q_l (x − z_l)/T; by block, in its order."""
        rate, weights = 1 / cast_like(self.temperature, points), jnp.exp(seen.log_weights)
        if self.weighting == "euclidean":  # the same x in all g_l: (z_l − Σ_m w_m z_m)/T is left
            offsets = rate * (anchors - jnp.mean(anchors, axis=0, keepdims=True))
            tilts = offsets[:, None] - dot(weights.T, offsets)[None]
            return split_columns(tilts, [block.size for block in self.parts.metric.blocks()])

        return [
            rate * (anchor - product) - self._mean_tilt(weights, product, anchor)[None]
            for product, anchor in self._products(seen)
        ]

    def _mean_tilt(
        self, weights: Float[Array, "l n"], product: Float[Array, "l n b"], anchor: Float[Array, "l 1 b"]
    ) -> Float[Array, "n b"]:
        """Σ_m w_m g_m at every point."""
        pulled = sum_unfused(weights[:, :, None] * product)
        return (dot(weights.T, anchor[:, 0]) - pulled) / cast_like(self.temperature, product)

    def _products(self, seen: "_Seen") -> Iterator[tuple[Float[Array, "l n b"], Float[Array, "l 1 b"]]]:
        """Q_l times the points and times the anchors, by block."""
        return zip(seen.points.products, seen.anchors.products, strict=True)

    def _log_scales(self) -> Float[Array, " l"]:
        logdets = jax.vmap(lambda metric: metric.logdet())(self.parts.metric)
        return 0.5 * logdets if self.weighting == "exact" else jnp.zeros_like(logdets)


def _sum_over_anchors(
    weights: Float[Array, "l m"], values: Float[Array, "l m n"], vectors: Float[Array, "l n b"]
) -> Float[Array, "m b"]:
    """Σ_l w_l(x_i) Σ_j k_l(x_i, y_j) v_lj: the weights go to the smaller of the pairs and of the products."""
    if vectors.shape[2] < values.shape[1]:
        products = jnp.matmul(values, vectors, precision="highest")  # l m b
        return jnp.sum(weights[:, :, None] * products, axis=0)
    return jnp.tensordot(weights[:, :, None] * values, vectors, axes=((0, 2), (0, 1)), precision="highest")


class _Seen(NamedTuple):
    """Points in every anchor's metric."""

    points: InMetric
    """Its arrays are (l, n, b), or (n, b) where all metrics have the same."""
    anchors: InMetric
    """Every anchor in its own metric: (l, 1, b)."""
    log_weights: Float[Array, "l n"]


def _in_metrics(
    metrics: AbstractMetric, points: Float[Array, "m d"], centre: Float[Array, "1 d"] | None = None
) -> InMetric:
    """The points in all metrics. Bandwidth, temperature, weights and velocity share it."""
    centred = metrics.arrange(points - (centre_of(points) if centre is None else centre))
    return in_metrics(metrics.for_arranged(), centred)


def _whiten(metrics: AbstractMetric, points: Points, anchors: Float[Array, "l d"]) -> Float[Array, "l n d"]:
    """R_l (x − centre), for bandwidth rules that need points."""
    offsets = points - jnp.mean(anchors, axis=0, keepdims=True)
    return jax.vmap(lambda metric: metric.whiten(offsets))(metrics)


def _adapt(
    base: AbstractMatrixKernel,
    metrics: AbstractMetric,
    points: Points,
    anchors: Float[Array, "l d"],
    seen: InMetric | None,
) -> Preconditioned:
    """The kernels around all anchors as one batch, with bandwidths adapted to the points."""
    if seen is not None and reads_distances_alone(base):

        def from_distances(metric: AbstractMetric, seen: InMetric) -> Preconditioned:
            scalar = adapt_in_metric(base.scalar, seen)
            return Preconditioned(Isotropic(scalar, base.precision, base.backend), metric)

        return jax.vmap(from_distances, in_axes=(0, batched_axes(seen)))(metrics, seen)
    if not isinstance(base, Isotropic):  # it may depend on where the origin is
        return jax.vmap(lambda metric: Preconditioned(base, metric).adapt(points))(metrics)

    def one(metric: AbstractMetric, whitened: Points) -> Preconditioned:
        return Preconditioned(base.adapt(whitened), metric)

    return jax.vmap(one)(metrics, _whiten(metrics, points, anchors))
