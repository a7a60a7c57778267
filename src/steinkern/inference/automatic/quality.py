"""How good are the particles, and what is not to be trusted about them?"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ...core.notices import Notice, Phrase
from ...core.programs import compiled
from ...core.types import Key, Points
from ...kernels.diagnostics import ksd2, stein_ratio
from .chains import Draws
from .convergence import Mixing, drifting

_DIRECTIONS = 64
_APART = 1.2  # R-hat beyond which chains are told apart
_RANKS_APART = 1.15  # the same of ranks: two places of which the smaller has a tenth of the chains
_TAILS = 12.0  # the fourth moment, 3 for a Gaussian, beyond which a standard deviation is hard to know
_NARROW = 0.5  # the acceptance that some chains have where others have 0.8 and more
_SURE = 8.0  # standard errors, over as many coordinates as there are
_STEIN = (0.6, 1.6)  # the Stein ratio of particles that are many enough for it
MANY = 50
"""Particles from which on the Stein ratio is judged."""
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


@compiled
def along_directions(key: Key, particles: Points, others: Float[Array, "m d"]) -> Float[Array, " k"]:
    """Kolmogorov's distance between two samples along random directions."""
    directions = jr.normal(key, (_DIRECTIONS, particles.shape[1]), particles.dtype)

    def distance(direction: Float[Array, " d"]) -> Array:
        mine, theirs = jnp.sort(particles @ direction), jnp.sort(others @ direction)
        at = jnp.concatenate([mine, theirs])
        shares = [jnp.searchsorted(some, at, side="right") / len(some) for some in (mine, theirs)]
        return jnp.max(jnp.abs(shares[0] - shares[1]))

    return jax.lax.map(distance, directions)


@compiled
def _discrepancies(particles: Points, scores: Points) -> tuple[Array, Array]:
    """The squared kernel Stein discrepancy and the Stein ratio."""
    return jnp.maximum(ksd2(particles, scores), 0), stein_ratio(particles, scores)


def judged(
    key: Key, particles: Points, scores: Points, held_aside: Float[Array, "m d"], mixing: Mixing,
    errors: tuple[np.ndarray, np.ndarray], identity_error: float, outside: int, draws: Draws,
) -> Quality:  # fmt: skip
    """Everything that can be said of the particles in numbers; they, their scores and the draws are whitened."""
    squared, ratio = _discrepancies(particles, scores)
    return Quality(
        ksd=float(squared) ** 0.5,
        stein_ratio=float(ratio),
        mean_errors=errors[0],
        sd_errors=errors[1],
        r_hat=float(mixing.r_hat.max()),
        acceptance=float(np.mean(draws.acceptance)),
        direction_error=float(jnp.max(along_directions(key, particles, held_aside))),
        identity_error=identity_error,
        outside=outside,
    )


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
    quality: Quality, mixing: Mixing, mean_errors: np.ndarray, draws: Draws, names: list[str], enough: float, many: bool
) -> Iterator[Notice]:
    """What is not to be trusted, why, and what to try.

    Args:
        quality: in numbers.
        mixing: of the chains.
        mean_errors: of the estimates, in standard deviations.
        draws: their draws.
        names: of the coordinates.
        enough: the standard errors, in standard deviations, up to which means and spreads are called settled.
        many: whether there are so many particles that their Stein ratio says something.
    """
    by_chain = np.mean(draws.acceptance, axis=0)
    points = draws.points
    unit = (points - points.mean(axis=(0, 1))) / np.where(points.std(axis=(0, 1)) > 0, points.std(axis=(0, 1)), 1)
    tails = np.mean(unit**4, axis=(0, 1))
    local = np.mean(np.abs(draws.scores), axis=0)  # a chain's own steepness: where curvature varies
    uneven = float(np.max(np.quantile(local, 0.95, axis=0) / np.maximum(np.quantile(local, 0.05, axis=0), 1e-300)))
    mean_error, sd_error = float(np.max(mean_errors)), float(np.max(mixing.sd_error))
    unsettled = max(mean_error, sd_error) > enough
    worst = names[int(np.argmax(np.maximum(mixing.mean_error, mixing.sd_error)))]
    if quality.r_hat > _APART:
        place = int(np.argmax(mixing.r_hat))
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
    elif unsettled or drifting(mixing):
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
