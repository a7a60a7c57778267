"""The test behind a verdict: whether particles can be draws of their target, from their scores.

For x ~ p with score s = ∇log p, Stein's identity with a constant and with a linear function gives

    E[s] = 0    and    −E[(x − E x) sᵀ] = I.

Three statistics follow, none of which depends on the units of a coordinate:

- the *shift* of a coordinate, sd(x_j) · mean(s_j), is 0. For a Gaussian target and particles of its spread it is the
  error of their mean in standard deviations.
- the *spread* of a coordinate, −mean((x_j − x̄_j) s_j), is 1. For a Gaussian target, in a coordinate independent
  of the others, it is the particles' variance over the target's.
- the *Stein ratio*, the average of the spreads, is 1 in any linear coordinates.

The ratio does not detect a shift, or one direction that is too wide beside another that is too narrow. Shift and spread
of single coordinates do not detect errors along their combinations. So all three are tested and, from `AXES_PARTICLES`
particles a coordinate on, shift and spread along the axes in which the particles are widest and narrowest *relative to
the target* as well: with u = C^{−1/2}(x − x̄) and t = C^{1/2} s, where C is the particles' covariance, these are the
eigenvectors of −E[u tᵀ]. They do not depend on the linear coordinates either.

A few outliers with huge scores enlarge the standard errors and can hide that all other particles are wrong. Where a
twentieth of the particles hold more than half of a coordinate's squared scores, shift and spread are also tested on the
*core*, with the test functions w and z w for w = exp(−z²/2), to which outliers add nothing. Here z is the distance from
the coordinate's median in units of its quartiles' distance.

A statistic fails where it is both *large* (beyond `MOST_SHIFT`, `SPREADS` or `RATIOS`) and *significant*: farther from
its value at draws than standard errors explain, at a level of `LEVEL` over all comparisons. A statistic that is very
large (`UNCLEAR_SHIFT`, `UNCLEAR_SPREAD`) and not significant, because of outliers or because the particles are few, is
*unclear*: such particles neither pass nor fail.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ..results.verdict import NOTHING, Measure, Verdict, not_judged

LEVEL = 1e-3
"""The probability that exact, independent draws fail, over all comparisons."""
MOST_SHIFT = 0.5
"""The largest shift, in standard deviations, that passes however significant it is."""
SPREADS = (1 / 3, 3.0)
"""The spreads of a coordinate or axis that pass: standard deviations within a factor of 1.7."""
RATIOS = (0.5, 2.0)
"""The Stein ratios that pass: standard deviations within a factor of 1.4, on average."""
UNCLEAR_SHIFT = 2.0
"""A larger shift that is not significant because of outliers is unclear."""
UNCLEAR_SPREAD = 6.0
"""A larger spread that is not significant because of outliers is unclear."""
UNCLEAR_SHARE = 0.85
"""A fifth of the particles count as outliers where they hold more than this share of the squared scores."""
UNCLEAR_PARTICLES = 30
"""With n fewer particles, shifts and spreads beyond `FEW_PARTICLES / n` times the two above are unclear. Smaller ones
pass, because draws of a bent target can have them."""
FEW_PARTICLES = 60
"""See `UNCLEAR_PARTICLES`."""
FEWEST_PARTICLES = 4
"""With fewer particles standard errors have so few degrees of freedom that nothing is significant."""
OUTWARD = 0.2
"""The density counts as growing outward where the Stein ratio is significantly negative and below minus this."""
AXES_PARTICLES = 2.5
"""The least number of particles a coordinate for the test along axes across the coordinates."""
_MOST_AXES = 512  # the most coordinates whose covariance is factorised
_LARGEST = 1e60  # of a score in units of its coordinate; its fourth power is finite
_QUARTILES = 1.349  # distance between the quartiles of a standard Gaussian


class RowErrors(NamedTuple):
    """Standard errors due to the sampling of rows, for scores on a sample of the data."""

    shift: np.ndarray
    spread: np.ndarray
    ratio: float
    batches: int
    """The number of batches in which the rows were drawn."""


class ScoreSum:
    """Accumulates scores over batches of rows, and the variance of shift, spread and ratio over the batches.

    Shift and spread are linear in the scores, so their variance over batches is that due to the sampling of rows.

    Args:
        points: (n, d) the particles.
    """

    def __init__(self, points: np.ndarray):
        self.total = np.zeros(points.shape)
        self._sd, self._centred = _centre(np.asarray(points, np.float64))
        self._batches = 0
        self._means = np.zeros((2, points.shape[1]))
        self._squares = np.zeros_like(self._means)  # of deviations from the running means (Welford, 1962)
        self._ratio = self._ratio_squares = 0.0

    def add(self, scores: np.ndarray, weight: float) -> None:
        """Add the scores on one batch."""
        own = np.asarray(scores, np.float64)
        self.total += weight * own
        self._batches += 1
        spread = -np.sum(self._centred * own, axis=0) / max(len(own) - 1, 1)
        new = np.stack([self._sd * own.mean(axis=0), spread])
        step, ratio_step = new - self._means, float(spread.mean()) - self._ratio
        self._means += step / self._batches
        self._ratio += ratio_step / self._batches
        self._squares += step * (new - self._means)
        self._ratio_squares += ratio_step * (float(spread.mean()) - self._ratio)

    def errors(self, share: float) -> RowErrors:
        """The standard errors, where disjoint batches hold `share` of the rows."""
        scale = (1 - share) / (self._batches * max(self._batches - 1, 1))
        shift, spread = np.sqrt(self._squares * scale)
        return RowErrors(shift, spread, math.sqrt(self._ratio_squares * scale), self._batches)


def judge(
    points: np.ndarray,
    scores: np.ndarray,
    names: Sequence[str] = (),
    *,
    rows: RowErrors | None = None,
    note: str = "",
    scatter: float = 1.0,
) -> Verdict:
    """The verdict on particles from their scores.

    Args:
        points: (n, d) the particles.
        scores: (n, d) ∇log p at the particles.
        names: the names of the coordinates.
        rows: standard errors due to the sampling of rows, for scores on part of the data. With them neither cores nor
            axes are tested.
        note: the note of the verdict.
        scatter: the scatter of averages over the particles, relative to that of independent draws.
    """
    x, s = np.asarray(points, np.float64), np.asarray(scores, np.float64)
    if len(x) < 2:
        return not_judged("one particle has no spread")
    if not (np.isfinite(x).all() and np.isfinite(s).all()):
        return not_judged("scores at the particles are not finite")
    if not s.any():
        return not_judged("the gradient of the log density is exactly zero at every particle")
    if len(x) < FEWEST_PARTICLES:
        return not_judged(f"{len(x)} particles are too few")
    with np.errstate(over="ignore", invalid="ignore"):
        sd, centred = _centre(x)
        # From here on every coordinate is in units of its standard deviation.
        x, s = centred / np.where(sd > 0, sd, 1), np.nan_to_num(np.clip(s * sd, -_LARGEST, _LARGEST), nan=_LARGEST)
        return _judge(x, s, bool((sd > 0).all()), names, rows, note, scatter)


def _share_of_largest(s: np.ndarray, part: int) -> np.ndarray:
    """(d,) the share of a coordinate's squared scores that the largest one in `part` particles hold.

    At draws of a Gaussian the largest twentieth holds 0.28 of them, and the largest fifth 0.65.
    """
    squares = np.sort(s**2, axis=0)
    largest = squares[-max(1, len(s) // part) :].sum(axis=0)
    return np.asarray(largest / np.maximum(squares.sum(axis=0), np.finfo(np.float64).tiny))


def grows_outward(points: np.ndarray, scores: np.ndarray) -> bool:
    """Whether the log density significantly increases away from the points' mean, as for −log p in place of log p."""
    return judge(points, scores).outward


def _judge(
    x: np.ndarray, s: np.ndarray, proper: bool, names: Sequence[str], rows: RowErrors | None, note: str,
    scatter: float,
) -> Verdict:  # fmt: skip
    n, d = x.shape
    with_axes = rows is None and n >= AXES_PARTICLES * d and 1 < d <= _MOST_AXES and proper
    compared = (4 if rows is None else 2) * d + 1 + (2 * d if with_axes else 0)
    test = _Test(compared, n, scatter, rows.batches if rows else 0)
    none = np.zeros(d)
    shift = test.shift(x, s, rows.shift if rows else none)
    spread = test.spread(x, s, rows.spread if rows else none)
    ratio = test.ratio(x, s, rows.ratio if rows else 0.0)
    core_shift, core_spread = test.core(x, s) if rows is None else (NOTHING, NOTHING)
    axes, axis_shift, axis_spread = np.zeros((0, d)), NOTHING, NOTHING
    if with_axes:
        axes, along, pulls = _axes(x, s)
        axis_shift = test.shift(along, pulls, none)
        axis_spread = test.spread(along, pulls, none, extreme=True)
    measures = (shift, spread, ratio, core_shift, core_spread, axis_shift, axis_spread)
    failed = any(measure.failed.any() for measure in measures)
    unclear = any(measure.unclear.any() for measure in (shift, spread))
    passed = False if failed else None if unclear else True
    return Verdict(
        passed, note, shift, spread, float(ratio.value[0]), float(ratio.error[0]), bool(ratio.low[0]),
        bool(ratio.high[0]), test.below_zero(ratio), core_shift, core_spread, axis_shift, axis_spread, axes,
        tuple(names),
    )  # fmt: skip


def _centre(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The standard deviation of every coordinate, and the points minus their mean."""
    centred = points - points.mean(axis=0)
    return np.sqrt(np.sum(centred**2, axis=0) / max(len(points) - 1, 1)), centred


def _axes(x: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Axes across the coordinates, and particles and scores along them in units of the particles' spread."""
    n, d = x.shape
    values, vectors = np.linalg.eigh(x.T @ x / (n - 1))
    root = np.sqrt(np.maximum(values, np.finfo(np.float64).eps * d * values[-1]))
    white, pulls = x @ vectors / root, s @ vectors * root
    identity = -white.T @ pulls / (n - 1)
    _, turn = np.linalg.eigh((identity + identity.T) / 2)
    return (vectors * root @ turn).T, white @ turn, pulls @ turn


class _Test:
    """Tests of significance at `LEVEL` over `compared` comparisons, with n particles and, unless 0, `batches` of rows.

    Particles and scores are in units of the coordinates' standard deviations. At draws sd(s_j) ≥ 1 then, by Cauchy and
    Schwarz on the second identity. This bounds all standard errors from below, however little the scores of these
    particles scatter.
    """

    def __init__(self, compared: int, n: int, scatter: float, batches: int):
        self.deviate = -NormalDist().inv_cdf(LEVEL / compared / 2)
        self.n, self.scatter, self.batches = n, scatter, batches

    def shift(self, x: np.ndarray, s: np.ndarray, rows: np.ndarray) -> Measure:
        """Tests mean(s_j) against 0."""
        value = s.mean(axis=0)
        own = np.maximum(s.std(axis=0, ddof=1), 1) / math.sqrt(self.n)
        error = np.hypot(own, rows)
        quantile = self.scatter * self._quantile(own, rows)
        far = (np.abs(value) > MOST_SHIFT) & (np.abs(value) > quantile * error)
        unclear = self._unclear(np.abs(value) / UNCLEAR_SHIFT, s) & ~far
        return Measure(value, error, far & (value < 0), far & (value > 0), unclear)

    def spread(self, x: np.ndarray, s: np.ndarray, rows: np.ndarray, *, extreme: bool = False) -> Measure:
        """Tests −mean(x_j s_j) against 1.

        Args:
            x: (n, d) the particles.
            s: (n, d) the scores.
            rows: (d,) standard errors due to the sampling of rows.
            extreme: the axes are those of extreme spread, at which even draws have values within (1 ± r√(d/n))² instead
                of 1, where r ≥ 1 is the scatter of the scores relative to a Gaussian's.
        """
        d = x.shape[1]
        value, own = self._means(-x * s)
        deviation = s.std(axis=0, ddof=1)
        edges = (1.0, 1.0)
        if extreme:
            beyond = math.sqrt(float(np.sum(deviation**2)) / max(float(np.sum(value**2)), np.finfo(float).tiny))
            edge = max(beyond, 1.0) * math.sqrt(d / self.n)
            edges = (max(1 - edge, 0.0) ** 2, (1 + edge) ** 2)
        # At draws sd(s) is the inverse of the correlation of x and −s, so the inverse of its lower confidence limit (by
        # Fisher's transformation) bounds sd(s) from above.
        correlation = np.clip(value / np.where(deviation > 0, deviation, 1), -1 + 1e-12, 1 - 1e-12)
        lower = np.tanh(np.arctanh(correlation) - self.deviate / math.sqrt(max(self.n - 3, 1)))
        largest = 1 / np.maximum(lower, 1e-3)
        # Small errors of the covariance become large in the spread of a coordinate that is correlated with others.
        plain = self.scatter if extreme else 1.0
        judged = self._against_one(value, own, deviation, largest, 1, SPREADS, rows, edges, plain)
        unclear = self._unclear(value / UNCLEAR_SPREAD, s) & ~judged.failed
        return replace(judged, unclear=unclear)

    def ratio(self, x: np.ndarray, s: np.ndarray, rows: float) -> Measure:
        """Tests the average of the spreads against 1; it does not depend on the linear coordinates."""
        value, own = self._means(-np.mean(x * s, axis=1, keepdims=True))
        deviation = np.mean(s.std(axis=0, ddof=1), keepdims=True)
        one = np.ones(1)
        return self._against_one(
            value, own, deviation, one, x.shape[1], RATIOS, np.array([rows]), (1.0, 1.0), self.scatter
        )  # fmt: skip

    def core(self, x: np.ndarray, s: np.ndarray) -> tuple[Measure, Measure]:
        """Tests shift and spread by the identities for w and z w, w = exp(−z²/2), scaled to their values at a Gaussian.

        E[(σs − z) w] = 0 and E[(σ s z + 1 − z²) w] = 0 with z = (x − m)/σ, for any m and σ. At a Gaussian of standard
        deviation σ and mean m − δσ the first is −δ/√2; at one of mean m and variance σ²/c the second is (1 − c)/√8.
        """
        lower, middle, upper = np.quantile(x, [0.25, 0.5, 0.75], axis=0)
        scale = (upper - lower) / _QUARTILES
        on = (scale > 0) & (_share_of_largest(s, 20) > 0.5)
        z = (x - middle) / np.where(scale > 0, scale, 1)
        weights, pull = np.exp(-(z**2) / 2), s * scale
        shift, spread = math.sqrt(2) * (pull - z) * weights, 1 - math.sqrt(8) * (pull * z + 1 - z**2) * weights
        # The lower bounds on the standard deviations are their values at a Gaussian.
        return self._core(shift, 0.0, 1.24, (-MOST_SHIFT, MOST_SHIFT), on), self._core(spread, 1.0, 1.4, SPREADS, on)

    def _core(
        self, terms: np.ndarray, at_draws: float, least: float, band: tuple[float, float], on: np.ndarray
    ) -> Measure:
        value = terms.mean(axis=0)
        error = np.maximum(terms.std(axis=0, ddof=1), least) / math.sqrt(self.n)
        far = (np.abs(value - at_draws) > self._quantile(error, np.zeros_like(error)) * error) & on
        return Measure(value, error, far & (value < band[0]), far & (value > band[1]), np.zeros_like(far))

    def _unclear(self, size: np.ndarray, s: np.ndarray) -> np.ndarray:
        """(d,) bool: whether values of this size, in units of the least unclear one, are unclear if not significant.

        They are where a fifth of the particles hold over `UNCLEAR_SHARE` of a coordinate's squared scores. A share of
        fewer than `UNCLEAR_PARTICLES` says little, so these must be larger instead.
        """
        if self.n < UNCLEAR_PARTICLES:
            return np.asarray(size > FEW_PARTICLES / self.n)
        return np.asarray((size > 1) & (_share_of_largest(s, 5) > UNCLEAR_SHARE))

    def below_zero(self, ratio: Measure) -> bool:
        """Whether a Stein ratio is significantly negative, and below −`OUTWARD`; at modes it is near 0."""
        value, error = float(ratio.value[0]), float(ratio.error[0])
        return value < -OUTWARD and value < -float(self._quantile(ratio.error, np.zeros(1))[0]) * error

    def _means(self, terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale = self.n / (self.n - 1)
        return scale * terms.mean(axis=0), scale * terms.std(axis=0, ddof=1) / math.sqrt(self.n)

    def _against_one(
        self, value: np.ndarray, own: np.ndarray, deviation: np.ndarray, largest: np.ndarray, coordinates: int,
        band: tuple[float, float], rows: np.ndarray, edges: tuple[float, float], plain: float,
    ) -> Measure:  # fmt: skip
        """Tests averages over `coordinates` coordinates of values distributed nearly as squares against 1.

        At draws of a Gaussian the relative error is e = √(2/n) a coordinate, and √((1 + r²)/n) where sd(s_j) is r. The
        cube root of a mean of squares is close to Gaussian, with mean 1 − e²/9 and standard deviation e/3 (Wilson and
        Hilferty, 1931).
        """
        error = np.hypot(own, rows)
        least = np.hypot(math.sqrt(2 / (self.n * coordinates)), rows)
        quantile = self.scatter * self._quantile(own, rows)
        low_edge, high_edge = edges
        # Too small: either its upper bound sd(s) is too small for draws, or the mean is in units of its error.
        bound = np.maximum(deviation, value)
        certain = self._root(bound / max(low_edge, 1e-12), least) < -quantile
        certain |= (value - low_edge) / np.maximum(error, least) < -quantile * plain / self.scatter
        low = (value < band[0] * low_edge) & certain & (low_edge > 0)
        # Too large: relative to the largest errors that draws with this correlation of x and s may have.
        null = np.hypot(np.sqrt((1 + largest**2) / (self.n * coordinates)), rows)
        relative = np.maximum(null, error / np.maximum(1, value))
        certain = (self._root(value / high_edge, relative) > quantile) & ((value - high_edge) / relative > quantile)
        high = (value > band[1] * high_edge) & certain
        return Measure(value, error, low, high, np.zeros_like(low))

    @staticmethod
    def _root(value: np.ndarray, relative: np.ndarray) -> np.ndarray:
        return (np.cbrt(value) - 1 + relative**2 / 9) * 3 / relative

    def _quantile(self, own: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The quantile of Student's t by Wallace's approximation (1959), accurate in the tails that many tests need."""
        freedom = np.full(np.shape(own), self.n - 1.0)
        if self.batches > 1:  # Satterthwaite's degrees of freedom for a sum of two variances
            whole = own**2 + rows**2
            parts = (own**2 / whole) ** 2 / (self.n - 1) + (rows**2 / whole) ** 2 / (self.batches - 1)
            freedom = np.maximum(1 / parts, 1)
        z = self.deviate * (8 * freedom + 3) / (8 * freedom + 1)
        return np.sqrt(freedom * np.expm1(np.minimum(z**2 / freedom, 100)))
