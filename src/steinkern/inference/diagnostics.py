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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.multihost import on_host, placed_like
from ..core.programs import compiled, compiled_quickly
from ..results.outcome import Diagnostics
from .loop import Evaluation, LoopState, Run, batch_of, evaluate

MAX_PARTICLES, MAX_COORDINATES = 4096, 256
"""The most particles and coordinates that are measured; of more, evenly spaced ones."""
_SHARE, _MIN_BATCHES = 0.03, 5
"""The minibatches that are evaluated at the end of a run, as a share of its steps, and the least number of them."""
_MAX_ON_HOST = 2**17  # measured numbers; the moments of more are computed by a program, which takes 0.1 s to compile
_KSD_PARTICLES = 256  # of the kernel Stein discrepancy, which takes all pairs
_DIRECTIONS = 64
_SIGNIFICANT_DRIFT = 4.0  # standard errors
_MIN_GAP, _MIN_CLUSTER = 2.0, 0.1  # between clusters of chains, in widths of one; the share of chains in the second
_MAX_SCORE = 1e15  # in units of the coordinate; its square is finite in float32


def evenly_spaced(number: int, max_items: int) -> np.ndarray:
    """At most `max_items` evenly spaced indices below `number`."""
    used = min(number, max_items)
    return np.arange(used) * number // used


def measured(array: Any) -> np.ndarray:
    """The rows and columns of an (n, …) array that are measured, on the host."""
    rows = evenly_spaced(len(array), MAX_PARTICLES)
    columns = evenly_spaced(math.prod(array.shape[1:]), MAX_COORDINATES)
    is_large = isinstance(array, jax.Array) and array.size > MAX_PARTICLES * MAX_COORDINATES
    return on_host(_entries_on_device(array, rows, columns)) if is_large else _entries(on_host(array), rows, columns)


def _entries(array: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    return array.reshape(len(array), -1)[rows][:, columns]


@compiled
def _entries_on_device(array: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
    return _entries(array, rows, columns)


def directions(d: int) -> np.ndarray:
    """(d, 64) random unit vectors, the same for every run."""
    vectors = np.random.default_rng(0).standard_normal((d, _DIRECTIONS))
    return np.asarray(vectors / np.sqrt(np.sum(vectors**2, axis=0)))


def stein_moments(points: Any, scores: Any) -> tuple[Any, Any, Any, Any]:
    """The moments of particles and scores, (n, d): on their device for large arrays of JAX, in NumPy for others.

    Returns:
        The averages, in one array: shifts of k coordinates and of the directions, spreads of both, and the Stein ratio;
        their standard errors; and some of the particles, in standard deviations from their mean, with the scores there
        in these units.
    """
    rows, columns = min(points.shape[0], MAX_PARTICLES), min(points.shape[1], MAX_COORDINATES)
    across = directions(columns)
    if isinstance(points, np.ndarray) or rows * columns <= _MAX_ON_HOST:
        with np.errstate(over="ignore", invalid="ignore"):
            return _stein_moments(np, measured(points), measured(scores), across)
    return _on_device(points, scores, jax.device_put(across.astype(points.dtype)))


def _stein_moments(xp: Any, points: Any, scores: Any, across: Any) -> tuple[Any, Any, Any, Any]:
    """The moments by the functions of a module, `numpy` or `jax.numpy`."""
    n, d = points.shape
    rows, columns = evenly_spaced(n, MAX_PARTICLES), evenly_spaced(d, MAX_COORDINATES)
    x, s = (values if len(rows) == n else values[rows] for values in (points, scores))
    if len(columns) < d:
        x, s = x[:, columns], s[:, columns]
    m, ksd_rows = len(rows), evenly_spaced(len(rows), _KSD_PARTICLES)
    centered = x - xp.mean(x, axis=0, keepdims=True)
    size = xp.max(xp.abs(centered), axis=0, keepdims=True)  # whose square may overflow
    relative = centered / xp.where(size > 0, size, 1)
    sd = size * xp.sqrt(xp.sum(relative**2, axis=0, keepdims=True) / (m - 1))
    white, pulled = centered / xp.where(sd > 0, sd, 1), xp.clip(s * sd, -_MAX_SCORE, _MAX_SCORE)
    # Points u and scores t along the coordinates, then along the directions, in units of their standard deviations.
    along = white @ across
    width = xp.sqrt(xp.sum(along**2, axis=0, keepdims=True) / (m - 1))
    width = xp.where(width > 0, width, 1)
    u, t = (xp.concatenate(parts, axis=1) for parts in ([white, along / width], [pulled, pulled @ across * width]))
    ratios = xp.mean(white * pulled, axis=1, keepdims=True)
    values = xp.concatenate([t, -u * t * (m / (m - 1)), -ratios * (m / (m - 1))], axis=1)
    return xp.mean(values, axis=0), xp.std(values, axis=0) / math.sqrt(m - 1), white[ksd_rows], pulled[ksd_rows]


@compiled_quickly
def _on_device(points: Float[Array, "n d"], scores: Float[Array, "n d"], across: Array) -> tuple[Any, Any, Any, Any]:
    return _stein_moments(jnp, points, scores, across)


def row_noise(averages: Sequence[np.ndarray], share: float) -> np.ndarray:
    """The standard errors of averages over disjoint batches, which hold this share of all rows."""
    return np.asarray(math.sqrt((1 - share) / len(averages)) * np.std(averages, axis=0, ddof=1))


def stein_numbers(points: Any, scores: Any, noise: np.ndarray | float = 0.0, num_batches: int = 0) -> Diagnostics:
    """Shift, spread, Stein ratio and kernel Stein discrepancy of particles.

    Args:
        points: (n, d) the particles, at least two of them.
        scores: (n, d) ∇log p at the particles.
        noise: standard errors due to the sampling of rows, for scores on part of the data.
        num_batches: the number of minibatches that these scores are from; 0 where all data were used.
    """
    (n, d), columns = points.shape, evenly_spaced(points.shape[1], MAX_COORDINATES)
    ends = np.cumsum([len(columns), _DIRECTIONS] * 2)
    with np.errstate(over="ignore", invalid="ignore"):
        averages, errors, *whitened = (np.asarray(part, np.float64) for part in stein_moments(points, scores))
        ksd2 = squared_discrepancy(*whitened)
        errors = np.hypot(errors, noise)
    shift, direction_shift, spread, direction_spread, ratio = np.split(averages, ends)
    shift_error, direction_shift_error, spread_error, direction_spread_error, ratio_error = np.split(errors, ends)
    return Diagnostics(
        not_checked=() if n > d else (f"small spreads, which {n} particles in {d} dimensions always have",),
        num_measured=min(n, MAX_PARTICLES), num_batches=num_batches, coordinates=columns,
        shift=shift, shift_error=shift_error, spread=spread, spread_error=spread_error,
        direction_shift=direction_shift, direction_shift_error=direction_shift_error,
        direction_spread=direction_spread, direction_spread_error=direction_spread_error,
        stein_ratio=float(ratio[0]), stein_ratio_error=float(ratio_error[0]), ksd=math.sqrt(max(ksd2, 0.0)),
    )  # fmt: skip


def measure(run: Run, loop: LoopState, first: Evaluation, last: Evaluation, *, interrupted: bool) -> Diagnostics:
    """The numbers of a run's last particles against the target, or the reason why they were not measured.

    Args:
        run: the run.
        loop: its last state.
        first: the target at its first particles.
        last: the target at its last particles.
        interrupted: by Ctrl-C; no further minibatch is then evaluated.
    """
    options, traits, points, scores = run.options, run.sampler.traits, loop.state.points, last.scores
    done, flat = run.steps_done(loop), _flat_coordinates(run, loop, first, last)
    sampled = run.target_at(loop).sampled_rows(run.data, options.batch_size)
    power = 1.0 if options.tempering is None or not done else float(options.tempering(loop.step - 1))
    reasons = {
        "the gradient of the log density, which this sampler does without": not traits.differentiates,
        "half precision is too coarse": points.dtype.itemsize < 4,
        "the run ended at the power 0 of the target, which is flat": power == 0,
        "one particle has no spread": len(points) < 2,
        "the gradient is exactly zero at all of them": not on_host(last.nonzero).any(),
        "Ctrl-C ended the run, and minibatches were left out": interrupted and bool(sampled),
    }
    for reason, applies in reasons.items():
        if applies:
            return Diagnostics(not_checked=(f"the particles ({reason})",), flat=flat)
    noise: np.ndarray | float = 0.0
    num_batches, notes = 0, []
    if sampled and traits.samples_target:
        chosen, share = batches(sampled, max(int(_SHARE * done), _MIN_BATCHES))
        target, averages, scores = run.target_at(loop), [], jnp.zeros_like(points)
        for rows in chosen:
            on_batch = evaluate(run.sampler, target, points, batch_of(target, run.data, rows)).scores
            scores += on_batch
            averages.append(on_host(stein_moments(points, on_batch)[0]))
        scores /= np.asarray(len(chosen), points.dtype)
        if share < 1:
            noise, num_batches = row_noise(averages, share), len(averages)
            notes.append(f"the rows outside of {num_batches} minibatches")
    if power != 1:
        scores = scores * np.asarray(power, scores.dtype)
        notes.append(f"the target to the power 1: the run ended at {power:g}")
    if not traits.samples_target:
        notes.append("the particles, which this sampler does not mean as draws")
    numbers = stein_numbers(points, scores, noise, num_batches)
    return replace(numbers, not_checked=(*notes, *numbers.not_checked), flat=flat)


def _flat_coordinates(run: Run, loop: LoopState, first: Evaluation, last: Evaluation) -> tuple[int, ...]:
    """The coordinates along which the gradient is zero at the first and last particles and at points near them."""
    if not run.sampler.traits.differentiates or run.options.batch_size is not None:  # other rows may depend on them
        return ()
    if not on_host(last.nonzero).any() and np.unique(on_host(last.log_densities)).size > 1:  # the gradient is cut off
        return ()
    nonzero = on_host(first.nonzero) | on_host(last.nonzero)
    if not nonzero.all():  # particles at a mode have a zero gradient too
        points = loop.state.points
        x = on_host(points).astype(np.float64)
        length = np.where(x.std(axis=0) > 0, x.std(axis=0), 0.1 * np.maximum(np.max(np.abs(x), axis=0), 1))
        offset = length * np.random.default_rng(1).uniform(0.3, 0.7, size=x.shape)
        displaced = placed_like((x + offset).astype(points.dtype), points)
        nonzero |= on_host(evaluate(run.sampler, run.target_at(loop), displaced, run.first_batch()).nonzero)
    return tuple(map(int, np.flatnonzero(~nonzero)))


def batches(sampled: dict[str, tuple[int, int]], max_batches: int) -> tuple[list[dict[str, np.ndarray]], float]:
    """Minibatches of rows, disjoint where that is possible, and the share of the rows that they cover.

    Args:
        sampled: for everything that is subsampled, the number of rows and the number in a minibatch.
        max_batches: the most minibatches, if there are as many disjoint ones.
    """
    disjoint = min(size // length for size, length in sampled.values())
    complete = len(sampled) == 1 and all(disjoint * length == size for size, length in sampled.values())
    number = min(max_batches, disjoint if complete else max(disjoint, _MIN_BATCHES))
    generator = np.random.default_rng(0)
    orders = {name: generator.permutation(size).astype(np.int32) for name, (size, _) in sampled.items()}
    chosen = {name: np.resize(order, (number, sampled[name][1])) for name, order in orders.items()}
    # Batches that share rows count as one. Rows of several plates are drawn independently, and no number of batches
    # contains all their pairs.
    share = min((number if number <= disjoint else 1) * length / size for size, length in sampled.values())
    share = share if len(sampled) == 1 else min(share, 0.999)
    return [{name: rows[i] for name, rows in chosen.items()} for i in range(number)], share


def squared_discrepancy(points: np.ndarray, scores: np.ndarray) -> float:
    """`steinkern.ksd2` with its default kernel, the RBF with the median bandwidth, for few particles.

    For k = exp(−r²/2h) the Stein kernel of two points is k (s·s' + (s − s')·(x − x')/h + d/h − r²/h²).
    """
    n, d = points.shape
    squares = np.sum(points**2, axis=1)
    r2 = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)
    pairs = r2[np.triu_indices(n, 1)]
    median = (float(np.median(pairs)) or float(np.mean(pairs)) or 1.0) if len(pairs) else 1.0
    h = median * 0.5 / math.log(n + 1.0)
    along, across = np.sum(scores * points, axis=1), scores @ points.T  # s·x and s·x'
    stein = scores @ scores.T + (along[:, None] + along - across - across.T) / h + d / h - r2 / h**2
    return float(np.mean(np.exp(-r2 / (2 * h)) * stein))


def measure_mixing(points: np.ndarray) -> Diagnostics:
    """R-hat, standard errors, drift and fourth moments of draws with axes (transition, chain, coordinate).

    The standard errors come from the spread of the chains' means, so they need no estimate of autocorrelation. The
    formula is that of independent chains. Jumps couple the chains, since each adds the difference of two others, but
    each jump uses one of thousands of pairs; on the targets of `tests/helpers/calibration.py` the errors are right.
    A change from the first half of the draws to the second counts as drift where it is significant.
    """
    t, n, _ = points.shape
    mean = points.mean(axis=(0, 1))
    variance = ((points - mean) ** 2).mean(axis=(0, 1))
    unit = (points - mean) / np.sqrt(np.where(variance > 0, variance, 1))
    errors, drifts = [], []
    for values in (unit, unit**2 / 2):  # half the variance: its error is that of the standard deviation
        errors.append(values.mean(axis=0).std(axis=0, ddof=1) / n**0.5)
        change = values[t // 2 :].mean(axis=0) - values[: t // 2].mean(axis=0)
        size, error = np.abs(change.mean(axis=0)), change.std(axis=0, ddof=1) / n**0.5
        drifts.append(np.max(size, where=size > _SIGNIFICANT_DRIFT * error, initial=0.0))
    within = unit.var(axis=0, ddof=1).mean(axis=0)
    between = unit.mean(axis=0).var(axis=0, ddof=1)
    r_hat = np.sqrt((t - 1) / t + between / np.where(within > 0, within, 1))
    return Diagnostics(
        r_hat=r_hat, mean_errors=errors[0], sd_errors=errors[1], chain_errors=np.maximum(*errors),
        drift=float(max(drifts)), fourth_moment=np.mean((unit**2) ** 2, axis=(0, 1)),
    )  # fmt: skip


def chain_numbers(diagnostics: Diagnostics, draws: Any) -> Diagnostics:
    """The diagnostics with the numbers of chains.

    Args:
        diagnostics: of the particles.
        draws: a `ChainState` of NumPy arrays, with axes (transition, chain, …).
    """
    mixing = measure_mixing(draws.points)
    return replace(
        diagnostics,
        r_hat=mixing.r_hat,
        mean_errors=mixing.mean_errors,
        sd_errors=mixing.sd_errors,
        chain_errors=mixing.chain_errors,
        drift=mixing.drift,
        fourth_moment=mixing.fourth_moment,
        num_clusters=_num_clusters(draws.points[:, :, int(np.argmax(mixing.r_hat))], draws.log_densities),
        slope_ratio=_slope_ratio(draws.points, draws.scores),
        acceptance=float(np.mean(draws.acceptance)),
        lowest_acceptance=float(np.mean(draws.acceptance, axis=0).min()),
    )


def _num_clusters(values: np.ndarray, log_densities: np.ndarray) -> int:
    """The number of clusters of chains, 1 where there is no evidence of several.

    Clusters are apart by more than twice the width of a chain, and the second largest has a tenth of the chains. Within
    each, medians differ less between chains than one chain varies, both of the values and of the log densities: in a
    funnel they differ more.

    Args:
        values: of a coordinate, with axes (transition, chain).
        log_densities: likewise.
    """
    medians, width = np.median(values, axis=0), np.median(values.std(axis=0))
    order = np.argsort(medians)
    cluster = np.zeros(len(order), int)
    cluster[order[1:]] = np.cumsum(np.diff(medians[order]) > _MIN_GAP * width)
    counts = np.bincount(cluster)
    if len(counts) == 1 or np.sort(counts)[-2] < _MIN_CLUSTER * len(order):
        return 1
    for each in (values, log_densities):
        medians = np.median(each, axis=0)
        within = medians - (np.bincount(cluster, medians) / counts)[cluster]
        if within.std() > np.median(each.std(axis=0)):
            return 1
    return len(counts)


def _slope_ratio(points: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(d,) the slopes along all other coordinates, where a coordinate is high over where it is low.

    By a regression of the logarithm of their norm on the coordinate, from the 10th to the 90th percentile of a
    Gaussian, which are 2.56 standard deviations apart; 1 for a Gaussian target, far from 1 along the width of a funnel.
    """
    d = points.shape[-1]
    rows = evenly_spaced(points[..., 0].size, MAX_PARTICLES)
    x, s = (values.reshape(-1, d)[rows] for values in (points, scores))
    x, squares = x - x.mean(axis=0), s**2 / np.maximum(np.mean(s**2, axis=0), 1e-300)
    # Below 1e-12 of the mean the sum is 0, or the rounding error of the difference.
    others = np.log(np.maximum(np.sum(squares, axis=1, keepdims=True) - squares, 1e-12))
    slope = np.mean(x * others, axis=0) / np.sqrt(np.maximum(np.mean(x**2, axis=0), 1e-300))
    return np.asarray(np.exp(2.56 * slope / 2)) if d > 1 else np.ones(d)


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
