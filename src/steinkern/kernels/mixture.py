"""The mixture of preconditioned kernels, Eqs. (16) to (18): one metric per anchor."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.particles import Scored
from ..core.types import Matrix, Points, Vector, as_number, cast_like, check_choice
from ..linalg.metrics import AbstractMetric, dot, split_columns, sum_of_solved
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
from .preconditioned import Preconditioned, has_radial_form
from .radial import DENSE_PAIRS, center_of
from .radial.ring import devices_in_ring

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
            of order d and the weights one-hot, so that a particle interacts with its own anchor only; T of order d
            couples them. `Mixture.of` also takes a rule such as `Median()`, which couples them in any dimension and
            scale where the weights have no determinants.
        weighting: "exact" is Eq. (17); "no_determinant" leaves ½ log det Q_l out; "euclidean" sets Q_l = I in the
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

        A temperature that is a bandwidth rule is evaluated at the distances of the weights, as the mean over the
        anchors.
        """
        needs_forms = has_radial_form(base) or isinstance(temperature, Median)
        forms = _in_metrics(metrics, points) if needs_forms else None
        if isinstance(temperature, AbstractBandwidth):
            if weighting == "euclidean":
                temperature = temperature(points)
            elif isinstance(temperature, Median):
                rule = temperature
                assert forms is not None
                axes = (batched_axes(forms),)
                temperature = jnp.mean(jax.vmap(lambda each: bandwidth_in_metric(rule, each), in_axes=axes)(forms))
            else:
                temperature = jnp.mean(jax.vmap(temperature)(_whiten(metrics, points, anchors)))
        return cls(_adapt(base, metrics, points, anchors, forms), anchors, temperature, weighting)

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
        sources = self._weigh(source.points, source.points)
        rows = sources if at is source.points else self._weigh(at, source.points)
        pairs = self.anchors.shape[0] * at.shape[0] * source.points.shape[0]
        is_small = pairs <= 4 * DENSE_PAIRS and devices_in_ring(source.points.shape[0]) == 1
        if is_small and has_radial_form(self.parts.base):
            return self._radial_velocity(at, source, rows, sources)
        metric, arrange = self.parts.metric, self.parts.metric.arrange
        tilts = jnp.concatenate(self._tilts(arrange(source.points), arrange(self.anchors), sources), axis=2)

        def one(part: Preconditioned, log_weight: Array, tilt: Array) -> Array:
            return tilted_velocity(part, at, source, log_weight, tilt)

        # The terms of Eq. (18), l m d numbers, for a batch of anchors at a time: this bounds the memory of distances.
        batch_size = max(1, 4 * DENSE_PAIRS // (at.shape[0] * source.points.shape[0]))
        arguments = (self.parts, sources.log_weights, metric.restore(tilts))
        if batch_size >= self.anchors.shape[0]:
            each = jax.vmap(one)(*arguments)
        else:
            each = jax.lax.map(lambda args: one(*args), arguments, batch_size=batch_size)
        return jnp.einsum("ln,lnd->nd", jnp.exp(rows.log_weights), each, precision="highest")

    def adapt(self, points: Points) -> "Mixture":
        parts = jax.vmap(lambda part: part.adapt(points))(self.parts)
        return Mixture(parts, self.anchors, self.temperature, self.weighting)

    def _radial_velocity(
        self, at: Float[Array, "m d"], source: Scored, rows: "_Weighted", sources: "_Weighted"
    ) -> Float[Array, "m d"]:
        """Eq. (18) for k(r²) I around every anchor, with two applications of each metric to each point.

        Brought back by R⁻¹, the drive of anchor l is Q_l⁻¹ of its tilted scores, and the repulsion along R(x − y) goes
        along x − y. Q_l times the points gives both their distances and their tilts; Q_l⁻¹ is the second application.
        """
        metric, center = self.parts.metric, center_of(source.points)
        points, scores, anchors = (metric.arrange(array) for array in (source.points, source.scores, self.anchors))
        if rows is sources:
            r2 = jax.vmap(distances_within_metric, in_axes=(batched_axes(sources.points),))(sources.points)  # l n n
        else:
            axes = (batched_axes(rows.points), batched_axes(sources.points))
            r2 = jax.vmap(distances_in_metric, in_axes=axes)(rows.points, sources.points)  # l m n
        values, slopes = jax.vmap(lambda base, squares: base.scalar.profile(squares))(self.parts.base, r2)
        at_weights, weights = jnp.exp(rows.log_weights), jnp.exp(sources.log_weights) * source.weights[None]  # l m, l n
        offsets = jnp.concatenate([source.points - center, jnp.ones_like(source.points[:, :1])], axis=1)
        ratio = jax.vmap(lambda base: base.scalar.constant_slope(at.dtype))(self.parts.base)
        if ratio is not None and at.shape[1] < at.shape[0]:  # k' = ratio × k: drive and repulsion in one product
            pushes = 2 * (ratio[:, None] * weights)[:, :, None] * offsets[None]
            pull = metric.restore(jnp.concatenate(self._pulls(points, scores, anchors, weights, sources), axis=2))
            sums = _sum_over_anchors(at_weights, values, pushes + jnp.pad(pull, ((0, 0), (0, 0), (0, 1))))
            return sums[:, :-1] - sums[:, -1:] * (at - center)
        repulsion = 2 * jnp.sum(at_weights[:, :, None] * slopes * weights[:, None], axis=0)
        if self.anchors is source.points:
            pairs = at_weights[:, :, None] * values * weights[:, None]  # l m n
            drive = self._drive(points, scores, anchors, sources, pairs)
            # Σ_l Σ_j c_lij (z_l − y_j)/T, the rest of the tilts; its rows add up to 0.
            if self.weighting != "euclidean":
                rate = 1 / cast_like(self.temperature, at)
                repulsion = repulsion + rate * (jnp.sum(pairs, axis=2).T - jnp.sum(pairs, axis=0))
        else:  # points may lie far from all anchors: there the nearest one's tilt, a difference, must cancel exactly
            pulls = self._pulls(points, scores, anchors, weights, sources)
            drive = jnp.concatenate([_sum_over_anchors(at_weights, values, pull) for pull in pulls], axis=1)
        sums = dot(repulsion, offsets)
        return metric.restore(drive) + sums[:, :-1] - sums[:, -1:] * (at - center)

    def _pulls(
        self,
        points: Points,
        scores: Points,
        anchors: Float[Array, "l d"],
        weights: Float[Array, "l n"],
        weighted: "_Weighted",
    ) -> list[Float[Array, "l n b"]]:
        """Q_l⁻¹ of the tilted scores, times the weights; by block."""
        blocks = self.parts.metric.for_arranged().blocks()
        columns = split_columns(scores, [block.size for block in blocks])
        return [
            jax.vmap(lambda metric, vectors: metric.solve(vectors))(block, weights[:, :, None] * (score[None] + tilt))
            for block, score, tilt in zip(blocks, columns, self._tilts(points, anchors, weighted), strict=True)
        ]

    def _drive(
        self,
        points: Points,
        scores: Points,
        anchors: Float[Array, "l d"],
        weighted: "_Weighted",
        pairs: Float[Array, "l m n"],
    ) -> Float[Array, "m d"]:
        """Σ_l Σ_j c_lij Q_l⁻¹ (s_j + ∇log w_l(y_j)) for anchors at the particles, except terms without Q_l⁻¹.

        A tilt is g_l − ḡ, of which ḡ(y_j) = Σ_m w_m g_m is the same for all anchors: every metric is applied to the
        same s_j − ḡ_j. The caller adds Q_l⁻¹ g_l = (z_l − y_j)/T; with Euclidean weights g_l is the same for all
        points.
        """
        blocks = self.parts.metric.for_arranged().blocks()
        sizes = [block.size for block in blocks]
        weights = jnp.exp(weighted.log_weights)
        if self.weighting == "euclidean":
            centered = (anchors - jnp.mean(anchors, axis=0, keepdims=True)) / cast_like(self.temperature, points)
            means = split_columns(dot(weights.T, centered), sizes)
            offsets: list[Array | None] = [*split_columns(centered, sizes)]
        else:
            means = [self._mean_tilt(weights, *pair) for pair in self._products(weighted)]
            offsets = [None] * len(sizes)
        drives = []
        for block, score, mean, offset in zip(blocks, split_columns(scores, sizes), means, offsets, strict=True):
            drive = sum_of_solved(block, pairs, score - mean)
            if offset is not None:
                each = jax.vmap(lambda metric, vector: metric.solve(vector))(block, offset[:, None])
                drive = drive + dot(jnp.sum(pairs, axis=2).T, each[:, 0])
            drives.append(drive)
        return jnp.concatenate(drives, axis=1)

    def _weigh(self, points: Float[Array, "m d"], cloud: Points) -> "_Weighted":
        """The points in every anchor's metric, relative to the centre of the cloud, and their weights."""
        metrics, center = self.parts.metric, center_of(cloud)
        forms = _in_metrics(metrics, points, center)
        if self.anchors is points:
            n = points.shape[0]
            anchors = jax.tree.map(
                lambda leaf: leaf.reshape(-1, 1, leaf.shape[-1])[:: n + 1 if leaf.ndim == 3 else 1], forms
            )
        else:
            offsets = metrics.arrange(self.anchors - center)[:, None]
            anchors = jax.vmap(lambda metric, offset: in_metric(metric.for_arranged(), offset))(metrics, offsets)
        if self.weighting == "euclidean":
            squares = squared_distances(self.anchors, points)
        elif self.anchors is points and points.shape[1] >= points.shape[0]:  # the distances that the velocity needs
            r2 = jax.vmap(distances_within_metric, in_axes=(batched_axes(forms),))(forms)
            squares = jnp.diagonal(r2, axis1=0, axis2=1).T
        else:
            squares = jax.vmap(lambda form, anchor: form.square_from(anchor), (batched_axes(forms), 0))(forms, anchors)
        exponents = -0.5 * squares / cast_like(self.temperature, points)
        return _Weighted(forms, anchors, jax.nn.log_softmax(exponents + self._log_scales()[:, None], axis=0))

    def _tilts(
        self, points: Points, anchors: Float[Array, "l d"], weighted: "_Weighted"
    ) -> list[Float[Array, "l n b"]]:
        """∇log w_l = g_l − Σ_m w_m g_m at every point, with g_l = −Q_l (x − z_l)/T; by block, in its order."""
        rate, weights = 1 / cast_like(self.temperature, points), jnp.exp(weighted.log_weights)
        if self.weighting == "euclidean":  # the same x in all g_l: (z_l − Σ_m w_m z_m)/T is left
            offsets = rate * (anchors - jnp.mean(anchors, axis=0, keepdims=True))
            tilts = offsets[:, None] - dot(weights.T, offsets)[None]
            return split_columns(tilts, [block.size for block in self.parts.metric.blocks()])

        return [
            rate * (anchor - product) - self._mean_tilt(weights, product, anchor)[None]
            for product, anchor in self._products(weighted)
        ]

    def _mean_tilt(
        self, weights: Float[Array, "l n"], product: Float[Array, "l n b"], anchor: Float[Array, "l 1 b"]
    ) -> Float[Array, "n b"]:
        """Σ_m w_m g_m at every point."""
        pulled = jnp.sum(weights[:, :, None] * product, axis=0)
        return (dot(weights.T, anchor[:, 0]) - pulled) / cast_like(self.temperature, product)

    def _products(self, weighted: "_Weighted") -> Iterator[tuple[Float[Array, "l n b"], Float[Array, "l 1 b"]]]:
        """Q_l times the points and times the anchors, by block."""
        return zip(weighted.points.products, weighted.anchors.products, strict=True)

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


class _Weighted(NamedTuple):
    """Points in every anchor's metric, with their log responsibilities."""

    points: InMetric
    """Its arrays are (l, n, b), or (n, b) where all metrics share them."""
    anchors: InMetric
    """Every anchor in its own metric: (l, 1, b)."""
    log_weights: Float[Array, "l n"]


def _in_metrics(
    metrics: AbstractMetric, points: Float[Array, "m d"], center: Float[Array, "1 d"] | None = None
) -> InMetric:
    """The points in all metrics, for bandwidth, temperature, weights and velocity alike."""
    centered = metrics.arrange(points - (center_of(points) if center is None else center))
    return in_metrics(metrics.for_arranged(), centered)


def _whiten(metrics: AbstractMetric, points: Points, anchors: Float[Array, "l d"]) -> Float[Array, "l n d"]:
    """R_l (x − centre), for bandwidth rules that need points."""
    offsets = points - jnp.mean(anchors, axis=0, keepdims=True)
    return jax.vmap(lambda metric: metric.whiten(offsets))(metrics)


def _adapt(
    base: AbstractMatrixKernel,
    metrics: AbstractMetric,
    points: Points,
    anchors: Float[Array, "l d"],
    forms: InMetric | None,
) -> Preconditioned:
    """The kernels around all anchors as one batch, with bandwidths adapted to the points."""
    if forms is not None and has_radial_form(base):

        def from_distances(metric: AbstractMetric, form: InMetric) -> Preconditioned:
            scalar = adapt_in_metric(base.scalar, form)
            return Preconditioned(Isotropic(scalar, base.precision, base.backend), metric)

        return jax.vmap(from_distances, in_axes=(0, batched_axes(forms)))(metrics, forms)
    if not isinstance(base, Isotropic):  # it may depend on the origin
        return jax.vmap(lambda metric: Preconditioned(base, metric).adapt(points))(metrics)

    whitened = _whiten(metrics, points, anchors)
    return jax.vmap(lambda metric, each: Preconditioned(base.adapt(each), metric))(metrics, whitened)
