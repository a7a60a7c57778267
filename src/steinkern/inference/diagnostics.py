"""The numbers by which a result is judged: moments of particles and scores, and convergence of chains.

For x ~ p with score s = ∇log p, Stein's identity with a constant and with a linear function gives

    E[s] = 0    and    −E[(x − E x) sᵀ] = I.

In units in which a coordinate of the particles has standard deviation 1, three statistics follow:

- the *shift* of a coordinate, mean(s_j), is 0 at draws. For a Gaussian target and particles as wide it is the error of
  their mean in standard deviations;
- the *spread* of a coordinate, −mean((x_j − x̄_j) s_j), is 1 at draws. For an independent Gaussian coordinate it is the
  particles' variance over the target's;
- the *Stein ratio*, the average of the spreads, is 1 at draws, in any linear coordinates.

Shift and spread are also measured along random directions across the coordinates, which see errors of correlations.
Many particles and coordinates are measured on evenly spaced ones, so that no run costs more than a bounded amount.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.messages import Notice
from ..core.multihost import on_host, placed_like
from ..core.programs import compiled
from ..core.types import Points
from ..results.outcome import Diagnostics
from ..samplers.auto import AutoSVGD
from .history import Record
from .loop import Evaluation, LoopState, Run, batch_of, evaluate
from .rounding import check_rounding

MAX_PARTICLES, MAX_COORDINATES = 4096, 256
"""The most particles and coordinates that are measured; of more, evenly spaced ones."""
_SHARE, _MIN_BATCHES = 0.03, 5
"""The minibatches that are evaluated at the end of a run, as a share of its steps, and the least number of them."""
_KSD_PARTICLES = 256  # of the kernel Stein discrepancy, which takes all pairs
_DIRECTIONS = 64
_SIGNIFICANT_DRIFT = 4.0  # standard errors
_MAX_SCORE = 1e15  # in units of the coordinate; its square is finite in float32


class SteinMoments(NamedTuple):
    """Shifts and spreads with their standard errors: of k coordinates, then along the random directions."""

    shift: Any
    shift_error: Any
    spread: Any
    spread_error: Any
    ratio: Any
    ratio_error: Any
    points: Any
    """Some of the particles, in standard deviations from their mean, for the discrepancy."""
    scores: Any
    """The scores there, in these units."""


class RowNoise(NamedTuple):
    """Standard errors due to the sampling of rows, for scores on part of the data."""

    shift: np.ndarray
    spread: np.ndarray
    ratio: np.ndarray
    num_batches: int


NO_NOISE = RowNoise(np.zeros(1), np.zeros(1), np.zeros(()), 0)


def row_noise_of(batches: Sequence[SteinMoments], share: float) -> RowNoise:
    """The errors of averages over disjoint batches, which hold this share of all rows."""
    shift, spread, ratio = (
        np.stack([on_host(getattr(one, name)) for one in batches]) for name in ("shift", "spread", "ratio")
    )
    if share >= 1:
        return NO_NOISE
    scale = math.sqrt((1 - share) / len(batches))
    shift, spread, ratio = (scale * np.std(values, axis=0, ddof=1) for values in (shift, spread, ratio))
    return RowNoise(shift, spread, ratio, len(batches))


def evenly_spaced(number: int, most: int) -> np.ndarray:
    """The indices of at most so many evenly spaced ones among `number`."""
    used = min(number, most)
    return np.arange(used) * number // used


def directions(d: int) -> np.ndarray:
    """(d, 64) random unit vectors, the same for every run."""
    vectors = np.random.default_rng(0).standard_normal((d, _DIRECTIONS))
    return np.asarray(vectors / np.sqrt(np.sum(vectors**2, axis=0)))


def stein_moments(points: Any, scores: Any) -> SteinMoments:
    """The moments of particles and scores, (n, d): on their device for arrays of JAX, in NumPy for arrays of NumPy."""
    across = directions(min(points.shape[1], MAX_COORDINATES))
    if isinstance(points, np.ndarray):
        return _stein_moments(np, points, scores, across)
    return _on_device(points, scores, jax.device_put(across.astype(points.dtype)))


def _stein_moments(xp: Any, points: Any, scores: Any, across: Any) -> SteinMoments:
    """The moments by the functions of a module, `numpy` or `jax.numpy`."""
    n, d = points.shape
    rows, columns = evenly_spaced(n, MAX_PARTICLES), evenly_spaced(d, MAX_COORDINATES)
    x = points if len(rows) == n else points[rows]
    s = scores if len(rows) == n else scores[rows]
    if len(columns) < d:
        x, s = x[:, columns], s[:, columns]
    m, few = len(rows), evenly_spaced(len(rows), _KSD_PARTICLES)
    centered = x - xp.mean(x, axis=0, keepdims=True)
    size = xp.max(xp.abs(centered), axis=0, keepdims=True)  # whose square may overflow
    relative = centered / xp.where(size > 0, size, 1)
    sd = size * xp.sqrt(xp.sum(relative**2, axis=0, keepdims=True) / (m - 1))
    unit, pull = centered / xp.where(sd > 0, sd, 1), xp.clip(s * sd, -_MAX_SCORE, _MAX_SCORE)
    u, t = (xp.concatenate([part, part @ across], axis=1) for part in (unit, pull))
    terms = -u * t * (m / (m - 1))
    of_each = -xp.mean(unit * pull, axis=1) * (m / (m - 1))

    def error(values: Any) -> Any:
        return xp.std(values, axis=0) / math.sqrt(m - 1)

    return SteinMoments(
        xp.mean(t, axis=0), error(t), xp.mean(terms, axis=0), error(terms), xp.mean(of_each), error(of_each),
        unit[few], pull[few],
    )  # fmt: skip


@compiled
def _on_device(points: Float[Array, "n d"], scores: Float[Array, "n d"], across: Array) -> SteinMoments:
    return _stein_moments(jnp, points, scores, across)


def stein_numbers(points: Any, scores: Any, row_noise: RowNoise = NO_NOISE) -> Diagnostics:
    """Shift, spread, Stein ratio and kernel Stein discrepancy of particles.

    Args:
        points: (n, d) the particles, at least two of them.
        scores: (n, d) ∇log p at the particles.
        row_noise: standard errors due to the sampling of rows, for scores on part of the data.
    """
    n, d = points.shape
    columns = evenly_spaced(d, MAX_COORDINATES)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = SteinMoments(*(np.asarray(part, np.float64) for part in stein_moments(points, scores)))
        ksd2 = squared_discrepancy(moments.points, moments.scores)
        shift_error = np.hypot(moments.shift_error, row_noise.shift)
        spread_error = np.hypot(moments.spread_error, row_noise.spread)
    k = len(columns)
    return Diagnostics(
        num_measured=min(n, MAX_PARTICLES), num_batches=row_noise.num_batches, coordinates=columns,
        shift=moments.shift[:k], shift_error=shift_error[:k],
        spread=moments.spread[:k], spread_error=spread_error[:k],
        direction_shift=moments.shift[k:], direction_shift_error=shift_error[k:],
        direction_spread=moments.spread[k:], direction_spread_error=spread_error[k:],
        stein_ratio=float(moments.ratio), stein_ratio_error=float(np.hypot(moments.ratio_error, row_noise.ratio)),
        ksd=math.sqrt(max(ksd2, 0.0)),
    )  # fmt: skip


def measure(run: Run, loop: LoopState, evaluation: Evaluation, *, interrupted: bool) -> Diagnostics:
    """The numbers of a run's last particles against the target, or the reason why they were not measured.

    Args:
        run: the run.
        loop: its last state.
        evaluation: the target at its last particles.
        interrupted: by Ctrl-C; no further minibatch is then evaluated.
    """
    options, traits, points, scores = run.options, run.sampler.traits, loop.state.points, evaluation.scores
    done = run.steps_done(loop)
    sampled = run.target_at(loop).sampled_rows(run.data, options.batch_size)
    power = 1.0 if options.tempering is None or not done else float(options.tempering(loop.step - 1))
    reasons = {
        "the gradient of the log density, which this sampler does without": not traits.differentiates,
        "half precision is too coarse": points.dtype.itemsize < 4,
        "the run ended at the power 0 of the target, which is flat": power == 0,
        "one particle has no spread": len(points) < 2,
        "the gradient is exactly zero at all of them": not on_host(evaluation.slopes).any(),
        "Ctrl-C ended the run, and minibatches were left out": interrupted and bool(sampled),
    }
    for reason, applies in reasons.items():
        if applies:
            return Diagnostics(not_checked=(f"the particles ({reason})",))
    noise, notes = NO_NOISE, []
    if sampled and traits.samples_target:
        chosen, share = batches(sampled, max(int(_SHARE * done), _MIN_BATCHES))
        noise, scores = _on_batches(run, loop, chosen, share)
        if share < 1:
            notes.append(f"the rows outside of {noise.num_batches} minibatches")
    if power != 1:
        scores = scores * np.asarray(power, scores.dtype)
        notes.append(f"the target to the power 1: the run ended at {power:g}")
    if not traits.samples_target:
        notes.append("the particles, which this sampler does not mean as draws")
    elif len(scores) <= scores.shape[1]:
        notes.append(f"spreads, which {len(scores)} particles in {scores.shape[1]} dimensions cannot have")
    return replace(stein_numbers(points, scores, noise), not_checked=tuple(notes))


def path_length(run: Run, loop: LoopState, records: Record, spread: float) -> float:
    """The length of all steps, relative to the spread of the first particles."""
    moves = records.info.velocity_norm.astype(np.float64) * records.info.step_size.astype(np.float64)
    return float(np.mean(moves)) * run.steps_done(loop) / spread if len(moves) and spread > 0 else np.inf


def flat_coordinates(run: Run, loop: LoopState, first: Evaluation, last: Evaluation) -> tuple[int, ...]:
    """The coordinates along which the gradient is zero at all first and last particles, and beside them."""
    if not run.sampler.traits.differentiates or run.options.batch_size is not None:  # other rows may depend on them
        return ()
    slopes = on_host(first.slopes) | on_host(last.slopes)
    if not slopes.all():  # particles at a mode have a zero gradient too
        points = loop.state.points
        x = on_host(points).astype(np.float64)
        length = np.where(x.std(axis=0) > 0, x.std(axis=0), 0.1 * np.maximum(np.max(np.abs(x), axis=0), 1))
        offset = length * np.random.default_rng(1).uniform(0.3, 0.7, size=x.shape)
        beside = placed_like((x + offset).astype(points.dtype), points)
        slopes |= on_host(evaluate(run.sampler, run.target_at(loop), beside, run.first_batch()).slopes)
    return tuple(map(int, np.flatnonzero(~slopes)))


def check_run_rounding(run: Run, loop: LoopState, evaluation: Evaluation) -> tuple[Notice, ...]:
    """Whether float32 is too coarse. Log densities count where they are used, for weights or reference chains."""
    points, sampler = loop.state.points, run.sampler
    if points.dtype != np.float32 or len(points) < 2 or not sampler.traits.samples_target:
        return ()
    coarse, masks = jax.tree.map(on_host, (evaluation.coarse, evaluation.coarse_particles))
    used = isinstance(sampler, AutoSVGD) or not sampler.traits.differentiates
    name_of = run.target.space.layout.coordinate_name
    return check_rounding(coarse, masks, name_of, on_host(evaluation.log_densities) if used else None)


def _on_batches(
    run: Run, loop: LoopState, chosen: list[dict[str, np.ndarray]], share: float
) -> tuple[RowNoise, Points]:
    """The mean of the scores on minibatches that hold this share of all rows, and its noise."""
    target, points = run.target_at(loop), loop.state.points
    total, each = jnp.zeros_like(points), []
    for rows in chosen:
        scores = evaluate(run.sampler, target, points, batch_of(target, run.data, rows)).scores
        each.append(stein_moments(points, scores))
        total += scores
    return row_noise_of(each, share), total / np.asarray(len(chosen), points.dtype)


def batches(sampled: dict[str, tuple[int, int]], most: int) -> tuple[list[dict[str, np.ndarray]], float]:
    """Minibatches of rows, disjoint where that is possible, and the share of the rows that they cover.

    Args:
        sampled: for everything that is subsampled, the number of rows and the number in a minibatch.
        most: the most minibatches, where so many are disjoint.
    """
    disjoint = min(size // length for size, length in sampled.values())
    complete = len(sampled) == 1 and all(disjoint * length == size for size, length in sampled.values())
    number = min(most, disjoint if complete else max(disjoint, _MIN_BATCHES))
    generator = np.random.default_rng(0)

    def draw(size: int, length: int) -> np.ndarray:
        if number * length <= size:
            return generator.choice(size, (number, length), replace=False)
        return np.stack([generator.choice(size, length, replace=False) for _ in range(number)])

    chosen = {name: draw(size, length) for name, (size, length) in sampled.items()}
    # Batches that share rows count as one. Rows of several plates are drawn independently, and no number of batches
    # contains all their pairs.
    counted = number if number <= disjoint else 1
    share = min(counted * length / size for size, length in sampled.values())
    chosen_batches = [{name: rows[i] for name, rows in chosen.items()} for i in range(number)]
    return chosen_batches, share if len(sampled) == 1 else min(share, 0.999)


def squared_discrepancy(points: np.ndarray, scores: np.ndarray) -> float:
    """`steinkern.ksd2` with its default kernel, the RBF with the median bandwidth, for few particles.

    For k = exp(−r²/2h) the Stein kernel of two points is k (s·s' + (s − s')·(x − x')/h + d/h − r²/h²).
    """
    n, d = points.shape
    squares = np.sum(points**2, axis=1)
    r2 = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)
    pairs = r2[np.triu_indices(n, 1)]
    typical = (float(np.median(pairs)) or float(np.mean(pairs)) or 1.0) if len(pairs) else 1.0
    h = typical * 0.5 / math.log(n + 1.0)
    along, across = np.sum(scores * points, axis=1), scores @ points.T  # s·x and s·x'
    stein = scores @ scores.T + (along[:, None] + along - across - across.T) / h + d / h - r2 / h**2
    return float(np.mean(np.exp(-r2 / (2 * h)) * stein))


class Mixing(NamedTuple):
    """Convergence of chains by coordinate, in standard deviations of the draws."""

    mean_error: np.ndarray
    """The standard error of the mean, from the spread of the chains' means."""
    sd_error: np.ndarray
    """The standard error of the standard deviation, from the spread of the chains' variances."""
    drift: np.ndarray
    """The change of the mean or the standard deviation from the first half of the draws to the second; 0 where it is
    not significant."""
    r_hat: np.ndarray
    """R-hat of Gelman and Rubin: the spread of all draws over that within chains, near 1 after convergence."""


def measure_mixing(points: np.ndarray) -> Mixing:
    """The convergence of draws with axes (transition, chain, coordinate).

    The standard errors come from the spread of the chains' means, so they need no estimate of autocorrelation. The
    formula is that of independent chains. Jumps couple the chains, since each adds the difference of two others, but
    each jump uses one of thousands of pairs; on the targets of `tests/helpers/calibration.py` the errors are right.
    """
    t, n, _ = points.shape
    mean = points.mean(axis=(0, 1))
    variance = ((points - mean) ** 2).mean(axis=(0, 1))
    unit = (points - mean) / np.sqrt(np.where(variance > 0, variance, 1))
    squares = unit**2 / 2  # half the variance: its error is that of the standard deviation

    def error(values: np.ndarray) -> np.ndarray:
        return np.asarray(values.mean(axis=0).std(axis=0, ddof=1) / n**0.5)

    def drift(values: np.ndarray) -> np.ndarray:
        change = values[t // 2 :].mean(axis=0) - values[: t // 2].mean(axis=0)
        size, chance = np.abs(change.mean(axis=0)), change.std(axis=0, ddof=1) / n**0.5
        return np.where(size > _SIGNIFICANT_DRIFT * chance, size, 0)

    within = unit.var(axis=0, ddof=1).mean(axis=0)
    between = unit.mean(axis=0).var(axis=0, ddof=1)
    r_hat = np.sqrt((t - 1) / t + between / np.where(within > 0, within, 1))
    return Mixing(error(unit), error(squares), np.maximum(drift(unit), drift(squares)), r_hat)


class ChainNumbers(NamedTuple):
    """What chains tell; the names are those of the fields of `Diagnostics`."""

    r_hat: np.ndarray
    rank_r_hat: float
    mean_errors: np.ndarray
    sd_errors: np.ndarray
    chain_errors: np.ndarray
    drift: float
    fourth_moment: np.ndarray
    slope_ratio: float
    acceptance: float
    lowest_acceptance: float


def chain_numbers(points: np.ndarray, scores: np.ndarray, acceptance: np.ndarray) -> ChainNumbers:
    """The numbers of chains.

    Args:
        points: the draws, with axes (transition, chain, coordinate).
        scores: ∇log p at the draws.
        acceptance: of every transition, with axes (transition, chain).
    """
    mixing = measure_mixing(points)
    sd = points.std(axis=(0, 1))
    unit = (points - points.mean(axis=(0, 1))) / np.where(sd > 0, sd, 1)
    slopes = np.mean(np.abs(scores), axis=0)  # the mean slope along each chain
    low, high = np.quantile(slopes, [0.05, 0.95], axis=0)
    by_chain = np.mean(acceptance, axis=0)
    # Ranks (Vehtari et al., 2021) are robust to a few chains with large values in a heavy tail or in the wide part of a
    # funnel, which are not in a separate mode.
    worst = points[:, :, int(np.argmax(mixing.r_hat))]
    ranks = np.argsort(np.argsort(worst, axis=None, kind="stable")).reshape(worst.shape)
    rank_r_hat = float(np.sqrt(ranks.var() / ranks.var(axis=0).mean()))
    return ChainNumbers(
        mixing.r_hat,
        rank_r_hat,
        mixing.mean_error,
        mixing.sd_error,
        np.maximum(mixing.mean_error, mixing.sd_error),
        float(mixing.drift.max()),
        np.mean(unit**4, axis=(0, 1)),
        float(np.max(high / np.maximum(low, 1e-300))),
        float(np.mean(acceptance)),
        float(by_chain.min()),
    )


def distance_along_directions(random: np.random.Generator, particles: np.ndarray, others: np.ndarray) -> float:
    """The largest Kolmogorov distance between two samples along 64 random directions.

    Between two neighboring particles one distribution function is constant and the other increases, so the distance is
    largest at a particle or just before one.
    """
    across = random.standard_normal((particles.shape[1], _DIRECTIONS))
    largest = 0.0
    for mine, theirs in zip((particles @ across).T, (others @ across).T, strict=True):
        samples = np.sort(mine), np.sort(theirs)
        for side in ("left", "right"):
            first, second = (np.searchsorted(sample, samples[0], side=side) / len(sample) for sample in samples)
            largest = max(largest, float(np.max(np.abs(first - second))))
    return largest
