"""How good are the particles, and what is not to be trusted about them?"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from ...core.notices import Notice, Phrase
from ...core.programs import compiled
from ...core.types import Points, Scalar
from ...kernels.bandwidth import Median
from ...kernels.diagnostics import ksd2
from .chains import Chains, Draws
from .convergence import Mixing, drifting, mixing, settled_error
from .other_parts import has_been_seen
from .particles import Placement
from .start import Start
from .whitening import Whitening

_DIRECTIONS = 64
_APART = 1.2  # R-hat beyond which chains are told apart
_RANKS_APART = 1.15  # the same of ranks: two places of which the smaller has a tenth of the chains
_TAILS = 12.0  # the fourth moment, 3 for a Gaussian, beyond which a standard deviation is hard to know
_NARROW = 0.5  # the acceptance that some chains have where others have 0.8 and more
_SURE = 8.0  # standard errors, over as many coordinates as there are
_STEIN = (0.6, 1.6)  # the Stein ratio of particles that are many enough for it
_MANY = 50  # particles from which on the Stein ratio is judged
_ON_HOST = 2000  # particles whose pairs NumPy goes through faster than a program is compiled
_FAR = 0.25  # distance of distribution functions along a random direction


@dataclass(frozen=True)
class Cost:
    """What a result took: evaluations at single points, and batches of them one after the other."""

    values: int
    gradients: int
    hessians: int
    sequential: int
    """Batched evaluations that had to wait for one another, which is what takes time on parallel hardware; a Hessian
    counts twice."""

    def in_words(self) -> str:
        """In a line."""
        return (
            f"{self.gradients:,} gradients, {self.hessians:,} Hessians, {self.sequential:,} evaluations one after the "
            "other"
        )

    def in_gradients(self, dimension: int) -> int:
        """All of it in gradients, a Hessian being worth `dimension` of them and a value one."""
        return self.values + self.gradients + dimension * self.hessians


@dataclass(frozen=True)
class Quality:
    """How well particles stand for their target, as far as can be told."""

    ksd: float
    """The kernel Stein discrepancy of the particles, in whitened coordinates."""
    stein_ratio: float
    """See `steinkern.stein_ratio`: 1 in expectation at exact draws."""
    mean_errors: np.ndarray
    """Standard errors of the means, by unconstrained coordinate, in its standard deviations."""
    sd_errors: np.ndarray
    """Relative standard errors of the standard deviations, likewise."""
    r_hat: float
    """The largest over the coordinates: near 1 where the chains cannot be told apart."""
    acceptance: float
    """Of the chains' trajectories."""
    direction_error: float
    """The largest distance between the distribution functions of the particles and of chains that had no part in
    placing them, over 64 random directions."""
    identity_error: float
    """How far the chains are from Stein's identity E[∇log p] = 0, in standard errors; 0 where it is near anyhow."""
    outside: int
    """Particles that had to be put back, because they were placed where the density is not finite."""

    def in_words(self) -> str:
        """In a line."""
        return (
            f"unconstrained means known to {np.max(self.mean_errors):.2g} sd, sds to {np.max(self.sd_errors):.1%} or "
            f"better, R-hat {self.r_hat:.3f}, Stein ratio {self.stein_ratio:.2f}, KSD {self.ksd:.2g}"
        )


def along_directions(random: np.random.Generator, particles: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Kolmogorov's distance between two samples along random directions.

    Between two particles the one distribution function is constant and the other grows, so that their distance is
    largest at a particle or just before it.
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
    """`steinkern.ksd2` with its default kernel, the RBF with the median bandwidth; of few particles on the host.

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
    """r² of all pairs."""
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
    """The last stage: how good the particles are, and what is not to be trusted about them."""
    seen = mixing(chains.draws.points)
    quality = measure_quality(random, placement, chains, seen)
    if chains.stopped:  # what chains do that were cut short says nothing of the target
        cut = f"Ctrl-C cut the chains short, after {len(chains.draws.leaps)} transitions: means and spreads may be off."
        return quality, (Notice("interrupted", cut),)
    warnings = tuple(concerns(quality, seen, placement, chains, start.names))
    other = start.other
    if other is not None and not has_been_seen(other, chains.draws.points):
        warnings = (other.notice(), *warnings)
    return quality, warnings


def measure_quality(random: np.random.Generator, placement: Placement, chains: Chains, seen: Mixing) -> Quality:
    """Everything that can be said of the particles in numbers."""
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

    Of the estimates, and of what the particles have in place of them: those put back to draws have other moments. Where
    chains were `slow` and are not settled, twice the errors of plain means and spreads: along a sharp bend, 20 keys,
    errors were 1.5 of these.
    """
    points, estimates = placement.points, placement.estimates
    sd = _standard_deviations(draws)
    mean = estimates.centre + whitening.unwhiten(estimates.mean)
    steps = whitening.steps()
    variance = np.sum(steps * (estimates.covariance @ steps), axis=0)
    mean_error, sd_error = estimates.mean_error / sd, estimates.variance_error / (2 * sd**2)
    if slow is not None and max(slow.mean_error.max(), slow.sd_error.max()) > settled_error(hard=True):
        mean_error, sd_error = 2 * slow.mean_error, 2 * slow.sd_error
    mean_error = np.hypot(mean_error, (points.mean(axis=0) - mean) / sd)
    if len(points) > 1:
        sd_error = np.hypot(sd_error, (points.std(axis=0) - np.sqrt(np.maximum(variance, 0))) / sd)
    return mean_error, sd_error


def _standard_deviations(draws: Draws) -> np.ndarray:
    """By coordinate, and 1 where there is none."""
    sd = draws.points.std(axis=(0, 1))
    return np.asarray(np.where(sd > 0, sd, 1))


def stay_apart(values: np.ndarray) -> bool:
    """Whether chains, axes (transition, chain), are in separate places: R-hat of the ranks of their values.

    By ranks (Vehtari et al., 2021), because a few chains far out in a heavy tail or in the wide part of a funnel have
    large values, and no place of their own.
    """
    ranks = np.empty(values.size)
    ranks[np.argsort(values, axis=None, kind="stable")] = np.arange(values.size)
    by_chain = ranks.reshape(values.shape)
    return bool(ranks.var() > _RANKS_APART**2 * by_chain.var(axis=0).mean())


def concerns(
    quality: Quality, seen: Mixing, placement: Placement, chains: Chains, names: list[str]
) -> Iterator[Notice]:
    """What is not to be trusted, why, and what to try.

    Args:
        quality: in numbers.
        seen: how the chains mixed.
        placement: the particles.
        chains: what they saw.
        names: of the coordinates.
    """
    draws, enough, many = chains.draws, settled_error(chains.hard), len(placement.points) >= _MANY
    mean_errors = placement.estimates.mean_error / _standard_deviations(draws)
    by_chain = np.mean(draws.acceptance, axis=0)
    points = draws.points
    unit = (points - points.mean(axis=(0, 1))) / np.where(points.std(axis=(0, 1)) > 0, points.std(axis=(0, 1)), 1)
    tails = np.mean(unit**4, axis=(0, 1))
    local = np.mean(np.abs(draws.scores), axis=0)  # a chain's own steepness: where curvature varies
    uneven = float(np.max(np.quantile(local, 0.95, axis=0) / np.maximum(np.quantile(local, 0.05, axis=0), 1e-300)))
    mean_error, sd_error = float(np.max(mean_errors)), float(np.max(seen.sd_error))
    unsettled = max(mean_error, sd_error) > enough
    worst = names[int(np.argmax(np.maximum(seen.mean_error, seen.sd_error)))]
    if quality.r_hat > _APART:
        place = int(np.argmax(seen.r_hat))
        where = names[place]
        if stay_apart(points[:, :, place]):
            yield Notice(
                "modes-apart",
                f"chains stay apart in {where!r} (R-hat {quality.r_hat:.2f}): there are separate modes, and how much "
                "mass each has is not known. Compare several starts, remove symmetries such as exchangeable labels, or "
                "see whether the modes are real.",
            )
        else:
            yield Notice(
                "slow-chains",
                f"chains move slowly in {where!r} (R-hat {quality.r_hat:.2f}): its mean and spread are not settled. A "
                "funnel does that, as in a hierarchy that is not well informed: write it non-centred.",
            )
    elif unsettled or drifting(seen):
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
            "has 3): its standard deviation is known less well than it seems. Trust quantiles more, or give it a "
            "prior with lighter tails.",
        )
    if quality.identity_error > _SURE or quality.outside:
        yield Notice(
            "edge",
            f"the density has an edge ({quality.outside} particles were placed beyond it, and the mean of its gradient "
            f"is {quality.identity_error:.0f} standard errors from 0): declare the support with ",
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
