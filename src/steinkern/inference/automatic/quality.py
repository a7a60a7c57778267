"""The last stage: measures of the particles' quality, and the warnings of `sample`."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from ...core.notices import Notice, Phrase, quantity
from ...core.programs import compiled
from ...core.reprs import ShortRepr
from ...core.types import Points, Scalar
from ...kernels.bandwidth import Median
from ...kernels.diagnostics import ksd2
from .chains import Chains, Draws
from .convergence import Mixing, are_drifting, largest_settled_error, measure_mixing
from .particles import Placement
from .second_component import has_been_visited
from .start import Start
from .whitening import Whitening

_DIRECTIONS = 64
_APART = 1.2  # R-hat above this gives a warning
_RANKS_APART = 1.15  # R-hat of ranks above this means separate modes, the smaller with at least a tenth of the chains
_TAILS = 12.0  # a fourth moment (3 for a Gaussian) above this gives a warning
_NARROW = 0.5  # a chain with a lower acceptance is in a narrow region; the mean acceptance is about 0.8
_SURE = 8.0  # standard errors; large, because the largest over all coordinates is compared
_STEIN = (0.6, 1.6)  # a Stein ratio outside this interval gives a warning
_MANY = 50  # the Stein ratio of fewer particles is too noisy to check
_ON_HOST = 2000  # up to this number of particles NumPy takes less time than compiling a program
_FAR = 0.25  # a Kolmogorov distance along a random direction above this gives a warning


@dataclass(frozen=True)
class Cost:
    """The cost of a result: evaluations at single points, and the number of sequential batches of them."""

    values: int
    gradients: int
    hessians: int
    sequential: int
    """The number of batched evaluations that depend on one another, which determines the time on parallel hardware; a
    Hessian counts twice."""

    def in_words(self) -> str:
        """The cost in one line."""
        return (
            f"{self.gradients:,} gradients, {self.hessians:,} Hessians, {self.sequential:,} evaluations one after the "
            "other"
        )

    def in_gradients(self, dimension: int) -> int:
        """The total cost in gradients: a Hessian counts as `dimension` gradients, a value as one."""
        return self.values + self.gradients + dimension * self.hessians


@dataclass(frozen=True, repr=False)
class Quality(ShortRepr):
    """Measures of how well the particles represent the target."""

    ksd: float
    """The kernel Stein discrepancy of the particles, in whitened coordinates."""
    stein_ratio: float
    """See `steinkern.stein_ratio`: 1 in expectation at exact draws."""
    mean_errors: np.ndarray
    """Standard errors of the means by unconstrained coordinate, in standard deviations."""
    sd_errors: np.ndarray
    """Relative standard errors of the standard deviations by unconstrained coordinate."""
    r_hat: float
    """The largest R-hat of a coordinate; near 1 after convergence."""
    acceptance: float
    """The mean acceptance probability of the chains' trajectories."""
    direction_error: float
    """The largest Kolmogorov distance, over 64 random directions, between the particles and draws that were not used to
    compute them."""
    identity_error: float
    """The largest deviation of the mean score from 0 (Stein's identity), in standard errors; 0 where it is below 0.1 in
    whitened coordinates."""
    outside: int
    """The number of particles replaced by draws, because the density is not finite at their support points."""

    def in_words(self) -> str:
        """The quality in one line."""
        return (
            f"standard errors of unconstrained means up to {np.max(self.mean_errors):.2g} sd, of their standard "
            f"deviations up to {np.max(self.sd_errors):.1%}; R-hat {self.r_hat:.3f}, "
            f"Stein ratio {self.stein_ratio:.2f}, KSD {self.ksd:.2g}"
        )


def along_directions(random: np.random.Generator, particles: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Kolmogorov's distance between two samples along each of 64 random directions.

    Between two neighbouring particles one distribution function is constant and the other increases, so the distance is
    largest at a particle or just before one.
    """
    directions = random.standard_normal((particles.shape[1], _DIRECTIONS))
    distances = np.empty(_DIRECTIONS)
    for place, (mine, theirs) in enumerate(zip((particles @ directions).T, (others @ directions).T, strict=True)):
        samples = np.sort(mine), np.sort(theirs)
        for side in ("left", "right"):
            first, second = (np.searchsorted(sample, samples[0], side=side) / len(sample) for sample in samples)
            distances[place] = max(distances[place] if side == "right" else 0, np.max(np.abs(first - second)))
    return distances


def squared_discrepancy(points: np.ndarray, scores: np.ndarray) -> float:
    """`steinkern.ksd2` with its default kernel, the RBF with the median bandwidth; in NumPy for few particles.

    For k = exp(−r²/2h) the Stein kernel of two points is k (s·s' + (s − s')·(x − x')/h + d/h − r²/h²).
    """
    n, d = points.shape
    if n > _ON_HOST:
        return float(_squared_discrepancy(jax.device_put(points), jax.device_put(scores)))
    h, r2 = _median_bandwidth(points), squared_distances(points, points)
    along = np.sum(scores * points, axis=1)  # s·x
    across = scores @ points.T  # s·x'
    kernel = np.exp(-r2 / (2 * h))
    stein = scores @ scores.T + (along[:, None] + along - across - across.T) / h + d / h - r2 / h**2
    return float(np.mean(kernel * stein))


def squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The squared distances of all pairs."""
    return np.maximum(np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1) - 2 * x @ y.T, 0)


def _median_bandwidth(points: np.ndarray) -> float:
    """The bandwidth of the rule `Median()`."""
    n, largest = len(points), Median().largest
    few = points if n <= largest else points[np.arange(largest) * n // largest]
    r2 = squared_distances(few, few)[np.triu_indices(len(few), 1)]
    typical = float(np.median(r2)) if len(r2) else 0.0
    mean = float(np.mean(r2)) if len(r2) else 0.0
    return (typical or mean or 1.0) * 0.5 / np.log(n + 1.0)


@compiled
def _squared_discrepancy(points: Points, scores: Points) -> Scalar:
    return ksd2(points, scores)


def check(
    random: np.random.Generator, start: Start, chains: Chains, placement: Placement
) -> tuple[Quality, tuple[Notice, ...]]:
    """Measure the quality of the particles, and make the warnings."""
    seen = measure_mixing(chains.draws.points)
    quality = measure_quality(random, placement, chains, seen)
    if chains.stopped:  # the other warnings need chains that were not cut short
        cut = f"Ctrl-C cut the chains short, after {len(chains.draws.leaps)} transitions: means and spreads may be off."
        return quality, (Notice("interrupted", cut),)
    warnings = tuple(find_concerns(quality, seen, placement, chains, start.names))
    other = start.other
    if other is not None and not has_been_visited(other, chains.draws.points):
        warnings = (other.notice(), *warnings)
    return quality, warnings


def measure_quality(random: np.random.Generator, placement: Placement, chains: Chains, seen: Mixing) -> Quality:
    """Measure the quality of the particles."""
    white, scores = placement.white, placement.white_scores
    centred = white - white.mean(axis=0)
    ratio = -np.sum(centred * scores) / ((len(white) - 1) * white.shape[1]) if len(white) > 1 else np.nan
    slow = seen if chains.hard else None
    mean_errors, sd_errors = _stated_errors(placement, Whitening.of(chains.sampler.metric), chains.draws, slow)
    return Quality(
        ksd=max(squared_discrepancy(white, scores), 0.0) ** 0.5,
        stein_ratio=float(ratio),
        mean_errors=mean_errors,
        sd_errors=sd_errors,
        r_hat=float(seen.r_hat.max()),
        acceptance=float(np.mean(chains.draws.acceptance)),
        direction_error=float(along_directions(random, placement.white, placement.held_aside).max()),
        identity_error=placement.estimates.identity_error,
        outside=placement.outside,
    )


def _stated_errors(
    placement: Placement, whitening: Whitening, draws: Draws, slow: Mixing | None
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the particles' means and standard deviations, in standard deviations.

    They combine the standard errors of the estimates with the difference between the estimates and the particles'
    moments, which is not 0 where particles were replaced by draws. For `slow` chains that have not converged the
    standard errors are twice those of plain means and spreads: on a sharp bend, over 20 keys, errors were 1.5 times
    as large as these.
    """
    points, estimates = placement.points, placement.estimates
    sd = _standard_deviations(draws)
    mean = estimates.centre + whitening.unwhiten(estimates.mean)
    steps = whitening.steps()
    variance = np.sum(steps * (estimates.covariance @ steps), axis=0)
    mean_error, sd_error = estimates.mean_error / sd, estimates.variance_error / (2 * sd**2)
    if slow is not None and max(slow.mean_error.max(), slow.sd_error.max()) > largest_settled_error(hard=True):
        mean_error, sd_error = 2 * slow.mean_error, 2 * slow.sd_error
    mean_error = np.hypot(mean_error, (points.mean(axis=0) - mean) / sd)
    if len(points) > 1:
        sd_error = np.hypot(sd_error, (points.std(axis=0) - np.sqrt(np.maximum(variance, 0))) / sd)
    return mean_error, sd_error


def _standard_deviations(draws: Draws) -> np.ndarray:
    """The standard deviations by coordinate; 1 in place of 0."""
    sd = draws.points.std(axis=(0, 1))
    return np.asarray(np.where(sd > 0, sd, 1))


def are_in_separate_modes(values: np.ndarray) -> bool:
    """Whether chains, axes (transition, chain), are in separate modes, by the R-hat of the ranks of their values.

    Ranks (Vehtari et al., 2021) are robust to a few chains with large values in a heavy tail or in the wide part of a
    funnel, which are not in a separate mode.
    """
    ranks = np.empty(values.size)
    ranks[np.argsort(values, axis=None, kind="stable")] = np.arange(values.size)
    by_chain = ranks.reshape(values.shape)
    return bool(ranks.var() > _RANKS_APART**2 * by_chain.var(axis=0).mean())


def find_concerns(
    quality: Quality, seen: Mixing, placement: Placement, chains: Chains, names: list[str]
) -> Iterator[Notice]:
    """The warnings about a result, each with its reason and advice.

    Args:
        quality: the measured quality.
        seen: the convergence diagnostics of the chains.
        placement: the particles.
        chains: the chains and their draws.
        names: the names of the coordinates.
    """
    draws, enough, many = chains.draws, largest_settled_error(chains.hard), len(placement.points) >= _MANY
    mean_errors = placement.estimates.mean_error / _standard_deviations(draws)
    by_chain = np.mean(draws.acceptance, axis=0)
    points = draws.points
    unit = (points - points.mean(axis=(0, 1))) / np.where(points.std(axis=(0, 1)) > 0, points.std(axis=(0, 1)), 1)
    tails = np.mean(unit**4, axis=(0, 1))
    local = np.mean(np.abs(draws.scores), axis=0)  # the mean slope along each chain
    uneven = float(np.max(np.quantile(local, 0.95, axis=0) / np.maximum(np.quantile(local, 0.05, axis=0), 1e-300)))
    mean_error, sd_error = float(np.max(mean_errors)), float(np.max(seen.sd_error))
    unsettled = max(mean_error, sd_error) > enough
    worst = names[int(np.argmax(np.maximum(seen.mean_error, seen.sd_error)))]
    if quality.r_hat > _APART:
        place = int(np.argmax(seen.r_hat))
        where = names[place]
        if are_in_separate_modes(points[:, :, place]):
            yield Notice(
                "modes-apart",
                f"chains stay apart in {where!r} (R-hat {quality.r_hat:.2f}): there are separate modes, and how much "
                "mass each has is not known. Compare several starts, remove symmetries such as exchangeable labels, or "
                "see whether the modes are real.",
            )
        else:
            yield Notice(
                "slow-chains",
                f"chains move slowly in {where!r} (R-hat {quality.r_hat:.2f}): its mean and spread are not settled. "
                "The usual cause is a funnel, as in a hierarchy with few data a group: write it non-centred.",
            )
    elif unsettled or are_drifting(seen):
        yield Notice(
            "not-settled",
            f"means and spreads are not settled, least of all in {worst!r} (standard errors up to "
            f"{mean_error:.2g} of a standard deviation in means, {sd_error:.1%} in spreads, and perhaps more): scales "
            "differ from place to place, as in a funnel or along a sharp bend. Write a hierarchy non-centred, other "
            "parameters so that they depend less on one another, and see that the density is proper.",
        )
    if by_chain.min() < _NARROW and uneven > 30:
        yield Notice(
            "uneven-curvature",
            f"curvature varies strongly (some chains accept {by_chain.min():.0%} of their moves, and the slope differs "
            f"{uneven:.0f}-fold between chains): a funnel, whose narrow end is seen too little. Write a hierarchy "
            "non-centred.",
        )
    if tails.max() > _TAILS:
        yield Notice(
            "heavy-tails",
            f"the tails of {names[int(tails.argmax())]!r} are heavy (fourth moment {tails.max():.0f} where a Gaussian "
            "has 3): the stated error of its standard deviation is too small. Rely on quantiles, or give it a "
            "prior with lighter tails.",
        )
    if quality.identity_error > _SURE or quality.outside:
        number = quantity(quality.outside, "support point")
        yield Notice(
            "edge",
            f"the density has an edge ({number} beyond it, replaced by draws, and the mean of its gradient "
            f"{quality.identity_error:.0f} standard errors from 0): declare the support with ",
            Phrase.SUPPORT,
            ".",
        )
    elif many and not _STEIN[0] < quality.stein_ratio < _STEIN[1]:
        yield Notice(
            "stein-identity",
            f"the particles do not satisfy Stein's identity (ratio {quality.stein_ratio:.2f}, 1 at exact draws): some "
            "direction is too wide or too narrow: ",
            Phrase.ASK_FOR_MORE,
            ", rescale the parameters, or declare an edge with ",
            Phrase.SUPPORT,
            ".",
        )
    if quality.direction_error > _FAR:
        yield Notice(
            "few-particles",
            f"the particles differ from chains held aside by {quality.direction_error:.2f} along some direction: they "
            "are too few for this target: ",
            Phrase.ASK_FOR_MORE,
            ".",
        )
