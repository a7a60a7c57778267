"""Chains held aside: do particles stay where they are under transitions that leave the target invariant?"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from ...core.notices import Notice, Phrase
from ...core.programs import compiled
from ...core.types import Batch, Points
from ...results.comparison import Comparison
from ...samplers.hamiltonian import ChainState, Hamiltonian
from ...targets.target import AbstractTarget
from ..automatic.chains import Draws, estimate_metric, join, one_round
from ..automatic.convergence import Mixing, measure_mixing
from ..automatic.quality import are_in_separate_modes
from ..automatic.randomness import transition_noise
from ..automatic.whitening import Whitening

CHAINS = 100
TRANSITIONS = 25
"""Of a round: two rounds adapt step size and metric, two are compared."""
MOST_NUMBERS = 20_000_000
"""Draws of more numbers are not held; the comparison is then left out, and a notice says so."""
FAR_MEAN = 0.2
"""Differences of means beyond so many standard deviations are reported."""
FAR_SD = (0.8, 1.25)
"""Ratios of standard deviations outside of these are reported."""
UNSETTLED = 0.1
"""Standard errors of the chains, in standard deviations, beyond which they tell too little."""
APART = 1.05
"""R-hat beyond which the chains may not have left the particles that they started from: where these are too narrow, so
are the chains, and the two agree. It is below 1.03 where the chains mix, and above 1.08 on bananas with too narrow
particles."""
_NARROW, _UNEVEN = 0.5, 30.0  # acceptance of the worst chain, and the ratio of slopes between chains, as in `sample`


class HeldAside(NamedTuple):
    """The draws of the rounds that are compared, and what all rounds took."""

    draws: Draws
    seen: Mixing
    spent: np.ndarray
    """Values, gradients, Hessians and batches of them."""


def affordable(d: int) -> bool:
    """Whether the draws of the chains fit into memory."""
    return CHAINS * 2 * TRANSITIONS * d <= MOST_NUMBERS


def run_held_aside(
    random: np.random.Generator, target: AbstractTarget, points: np.ndarray, whitening: Whitening, data: Batch
) -> HeldAside:
    """Run chains from the particles: two rounds to adapt, in the given metric and a measured one, and two to compare.

    Args:
        random: draws the momenta, the jumps and all else.
        target: bound to its space, in the precision of the points.
        points: (n, d) the particles. Every chain starts at one; of many particles, evenly spaced ones start a chain.
        whitening: the metric of the first round.
        data: all of them.
    """
    n, d = points.shape
    rows = np.arange(CHAINS) * n // CHAINS if n > CHAINS else np.resize(np.arange(n), CHAINS)
    state = _begin(target, jax.device_put(points[rows]), data)
    dtype, root = points.dtype, whitening.root
    precision = root**2 if root.ndim == 1 else root.T @ root
    sampler = Hamiltonian(whitening.metric(), jax.device_put(np.asarray(d**-0.25, dtype)))
    gradients, batches, rounds = CHAINS, 1, []
    for rate in (1.0, 1.0, 0.0, 0.0):
        noise = transition_noise(random, sampler, TRANSITIONS, CHAINS, d, dtype)
        turn = jax.device_put(np.asarray(rate, dtype))
        state, step, draws = one_round(noise, target, sampler, state, data, turn)
        draws = jax.tree.map(np.asarray, draws)
        leaps = int(np.sum(draws.leaps))
        gradients += leaps * CHAINS + TRANSITIONS * (CHAINS // 2)
        batches += leaps + TRANSITIONS
        if rate:
            sampler = Hamiltonian(estimate_metric(draws, precision), step)
        else:
            rounds.append(draws)
    kept = join(rounds)
    return HeldAside(kept, measure_mixing(kept.points), np.array([0, gradients, 0, batches]))


@compiled
def _begin(target: AbstractTarget, points: Points, data: Batch) -> ChainState:
    return Hamiltonian.init_at(target, points, data)


def compare(points: np.ndarray, held: HeldAside) -> Comparison:
    """The particles' means and standard deviations beside those of the chains."""
    draws = held.draws.points.reshape(-1, points.shape[1])
    sd = draws.std(axis=0)
    sd = np.where(sd > 0, sd, 1)
    differences, ratios = (points.mean(axis=0) - draws.mean(axis=0)) / sd, points.std(axis=0) / sd
    return Comparison(
        differences,
        ratios,
        np.hypot(differences, held.seen.mean_error),
        np.hypot(ratios - 1, held.seen.sd_error),
        float(held.seen.r_hat.max()),
        held.draws.points.shape[1],
        len(held.draws.points),
        int(held.spent[1]),
    )


def doubts(comparison: Comparison, held: HeldAside, names: list[str]) -> Iterator[Notice]:
    """What is not to be trusted about the particles, by the chains held aside."""
    draws, seen = held.draws, held.seen
    if comparison.r_hat > APART:
        place = int(np.argmax(seen.r_hat))
        if are_in_separate_modes(draws.points[:, :, place]):
            yield Notice(
                "modes-apart",
                f"chains from the particles stay apart in {names[place]!r} (R-hat {comparison.r_hat:.2f}): there may "
                "be separate modes, and how much mass each has is not known. Compare several starts, or ",
                Phrase.SAMPLE,
                ".",
            )
        else:
            yield Notice(
                "slow-chains",
                f"chains from the particles move slowly in {names[place]!r} (R-hat {comparison.r_hat:.2f}), so that "
                "they cannot tell whether its mean and spread are right: ",
                Phrase.SAMPLE,
                ". If the target is a hierarchy, write it non-centred.",
            )
    elif max(float(seen.mean_error.max()), float(seen.sd_error.max())) > UNSETTLED:
        worst = names[int(np.argmax(np.maximum(seen.mean_error, seen.sd_error)))]
        yield Notice(
            "not-settled",
            f"chains from the particles tell little of {worst!r} (standard errors up to {seen.mean_error.max():.2g} of "
            f"a standard deviation in means, {seen.sd_error.max():.0%} in spreads): ",
            Phrase.SAMPLE,
            ".",
        )
    difference, ratio = np.abs(comparison.mean_differences), comparison.sd_ratios
    off = (difference > FAR_MEAN) | (ratio < FAR_SD[0]) | (ratio > FAR_SD[1])
    if off.any():
        place = int(np.argmax(difference / FAR_MEAN + np.abs(np.log(np.maximum(ratio, 1e-300))) / np.log(FAR_SD[1])))
        others = f", and in {int(off.sum()) - 1} others" if off.sum() > 1 else ""
        yield Notice(
            "beside-chains",
            f"the particles differ from chains held aside in {names[place]!r}{others}: the mean by "
            f"{difference[place]:.2g} standard deviations, and the standard deviation is {ratio[place]:.2f} of theirs. "
            "The target's shape is not the one that these particles can take: ",
            Phrase.SAMPLE,
            ".",
        )
    by_chain, slopes = np.mean(draws.acceptance, axis=0), np.mean(np.abs(draws.scores), axis=0)
    low, high = np.quantile(slopes, 0.05, axis=0), np.quantile(slopes, 0.95, axis=0)
    uneven = float(np.max(high / np.maximum(low, 1e-300)))
    if by_chain.min() < _NARROW and uneven > _UNEVEN:
        yield Notice(
            "uneven-curvature",
            f"curvature varies strongly (the slope differs {uneven:.0f}-fold between chains, and some accept "
            f"{by_chain.min():.0%} of their moves): a funnel, whose narrow end is seen too little. Write a hierarchy "
            "non-centred, or ",
            Phrase.SAMPLE,
            ".",
        )
