"""How good are the particles, and what is not to be trusted about them?"""

from collections.abc import Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._types import Key, Points
from ..diagnostics import ksd2, stein_ratio
from ..metric import AbstractMetric
from .chains import Draws
from .mixing import ENOUGH, Mixing, drifting

_DIRECTIONS = 64
_APART = 1.2  # R-hat beyond which chains are told apart
_TAILS = 12.0  # the fourth moment, 3 for a Gaussian, beyond which a standard deviation is hard to know
_NARROW = 0.5  # the acceptance that some chains have where others have 0.8 and more
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


@eqx.filter_jit
def along_directions(
    key: Key, particles: Points, others: Float[Array, "m d"], metric: AbstractMetric
) -> Float[Array, " k"]:
    """Kolmogorov's distance between two samples along random directions of the whitened space."""
    d = particles.shape[1]
    directions = jr.normal(key, (_DIRECTIONS, d), particles.dtype)

    def distance(direction: Float[Array, " d"]) -> Array:
        weights = metric.push_score(direction)  # directionᵀ R x
        mine, theirs = jnp.sort(particles @ weights), jnp.sort(others @ weights)
        at = jnp.concatenate([mine, theirs])
        shares = [jnp.searchsorted(some, at, side="right") / len(some) for some in (mine, theirs)]
        return jnp.max(jnp.abs(shares[0] - shares[1]))

    return jax.lax.map(distance, directions)


def judged(
    key: Key, particles: Points, scores: Points, held_aside: Float[Array, "m d"], metric: AbstractMetric,
    mixing: Mixing, mean_errors: Array, sd_errors: Array, draws: Draws,
) -> Quality:  # fmt: skip
    """Everything that can be said of the particles in numbers."""
    white, pulled = _whitened(particles, scores, metric)
    return Quality(
        ksd=float(jnp.sqrt(jnp.maximum(ksd2(white, pulled), 0))),
        stein_ratio=float(stein_ratio(particles, scores)),
        mean_errors=np.asarray(mean_errors),
        sd_errors=np.asarray(sd_errors),
        r_hat=float(mixing.r_hat.max()),
        acceptance=float(np.mean(draws.acceptance)),
        direction_error=float(jnp.max(along_directions(key, particles, held_aside, metric))),
    )


@eqx.filter_jit
def _whitened(particles: Points, scores: Points, metric: AbstractMetric) -> tuple[Points, Points]:
    return jax.vmap(metric.whiten)(particles), jax.vmap(metric.pull_score)(scores)


def concerns(quality: Quality, mixing: Mixing, draws: Draws, names: list[str]) -> Iterator[str]:
    """What is not to be trusted, why, and what to try."""
    by_chain = np.mean(draws.acceptance, axis=0)
    points = draws.points
    unit = (points - points.mean(axis=(0, 1))) / np.where(points.std(axis=(0, 1)) > 0, points.std(axis=(0, 1)), 1)
    tails = np.mean(unit**4, axis=(0, 1))
    local = np.mean(np.abs(draws.scores), axis=0)  # a chain's own steepness: where curvature varies
    uneven = float(np.max(np.quantile(local, 0.95, axis=0) / np.maximum(np.quantile(local, 0.05, axis=0), 1e-300)))
    unsettled = max(float(np.max(quality.mean_errors)), float(np.max(quality.sd_errors))) > 2 * ENOUGH
    worst = names[int(np.argmax(np.maximum(mixing.mean_error, mixing.sd_error)))]
    if quality.r_hat > _APART:
        place = int(np.argmax(mixing.r_hat))
        where, chains = names[place], points[:, :, place]
        if chains.mean(axis=0).std() > chains.std(axis=0).mean():
            yield (
                f"chains stay apart in {where!r} (R-hat {quality.r_hat:.2f}): there are separate modes, and how much "
                "mass each has is not known. Compare several starts, remove symmetries such as exchangeable labels, or "
                "see whether the modes are real."
            )
        else:
            yield (
                f"chains move slowly in {where!r} (R-hat {quality.r_hat:.2f}): its mean and spread are not settled. A "
                "funnel does that, as in a hierarchy that is not well informed: write it non-centred."
            )
    elif unsettled or drifting(mixing):
        yield (
            f"means and spreads are not settled, least of all in {worst!r} (standard error "
            f"{float(np.max(quality.mean_errors)):.2g} of its standard deviation): its scale differs from place to "
            "place, as in a funnel. Write a hierarchy non-centred, or see that the density is proper."
        )
    if by_chain.min() < _NARROW and uneven > 30:
        yield (
            f"curvature varies strongly (some chains accept {by_chain.min():.0%} of their moves, and the slope differs "
            f"{uneven:.0f}-fold between chains): a funnel, whose narrow end is seen too little. Write a hierarchy "
            "non-centred."
        )
    if tails.max() > _TAILS:
        yield (
            f"the tails of {names[int(tails.argmax())]!r} are heavy (fourth moment {tails.max():.0f} where a Gaussian "
            "has 3): its standard deviation is known less well than it seems. Trust quantiles more, or give it a "
            "prior with lighter tails."
        )
    if quality.direction_error > _FAR:
        yield (
            f"the particles differ from chains held aside by {quality.direction_error:.2f} along some direction: they "
            "are too few for this target. Ask for more with `num_particles=`."
        )
