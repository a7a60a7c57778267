"""A test of whether ranks are uniform, by their empirical distribution function and simultaneous bands around it.

Säilynoja, Bürkner and Vehtari, Graphical test for discrete uniformity and its applications in goodness-of-fit
evaluation and multiple sample comparison, Statistics and Computing 32(32), 2022.
"""

import math
from dataclasses import dataclass

import numpy as np

_POINTS = 100  # the most points at which distribution functions are compared
_NULL_DRAWS = 10_000  # of ranks that are uniform
_SEED = 0  # p-values are a function of the ranks alone


@dataclass(frozen=True, eq=False)
class UniformityTest:
    """The null distribution of the test for `num_samples` ranks in 0, …, `num_ranks` − 1.

    At K − 1 points z_j the number of ranks below z_j · `num_ranks` has a binomial distribution. γ is the smallest of
    the two-sided tail probabilities of these numbers, over the points. The numbers depend on each other, so the
    distribution of γ for uniform ranks is simulated.
    """

    num_samples: int
    num_ranks: int
    edges: np.ndarray
    """(K − 1,) the ranks at which distribution functions are compared: the number of ranks below each is counted."""
    tails: np.ndarray
    """(num_samples + 1, K − 1): the two-sided tail probability of every number at every point."""
    null: np.ndarray
    """γ of sets of uniform ranks, in ascending order."""

    @property
    def levels(self) -> np.ndarray:
        """(K − 1,) the points z_j = edge / num_ranks, the uniform distribution function at the edges."""
        return self.edges / self.num_ranks

    def counts(self, ranks: np.ndarray) -> np.ndarray:
        """(K − 1,) how many of the ranks are below each edge."""
        return np.searchsorted(np.sort(ranks), self.edges, side="left")

    def p_value(self, ranks: np.ndarray) -> float:
        """The probability that uniform ranks have as small a γ as these.

        Below the resolution of the simulation it is the union bound (K − 1) γ.
        """
        gamma = float(np.min(self.tails[self.counts(ranks), np.arange(len(self.edges))]))
        below = int(np.searchsorted(self.null, gamma * (1 + 1e-9), side="right"))
        simulated = (1 + below) / (1 + len(self.null))
        return simulated if below else min(simulated, len(self.edges) * gamma)

    def band(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """(K − 1,) the smallest and the largest numbers that stay within the simultaneous band of this level."""
        gamma = float(self.null[int((1 - level) * len(self.null))])
        inside = self.tails >= gamma * (1 - 1e-9)
        lower = np.argmax(inside, axis=0)
        upper = self.num_samples - np.argmax(inside[::-1], axis=0)
        return lower, upper


def uniformity_test(num_samples: int, num_ranks: int) -> UniformityTest:
    """The test for this many ranks in 0, …, `num_ranks` − 1; at least two ranks are needed to tell anything."""
    points = min(num_ranks, _POINTS)
    edges = np.unique(np.round(np.arange(1, points) * num_ranks / points).astype(int))
    mass = _binomial_mass(num_samples, edges / num_ranks)
    at_most, at_least = np.cumsum(mass, axis=0), np.cumsum(mass[::-1], axis=0)[::-1]
    tails = np.minimum(2 * np.minimum(at_most, at_least), 1.0)
    shares = np.diff(np.concatenate([[0], edges, [num_ranks]])) / num_ranks
    drawn = np.random.default_rng(_SEED).multinomial(num_samples, shares, size=_NULL_DRAWS)
    counts = np.cumsum(drawn, axis=1)[:, :-1]
    null = np.sort(np.min(tails[counts, np.arange(len(edges))[None, :]], axis=1))
    return UniformityTest(num_samples, num_ranks, edges, tails, null)


def _binomial_mass(number: int, shares: np.ndarray) -> np.ndarray:
    """(number + 1, len(shares)): the probabilities of 0, …, number under Binomial(number, share)."""
    log_factorial = np.array([math.lgamma(k + 1) for k in range(number + 1)])
    ways = (log_factorial[-1] - log_factorial - log_factorial[::-1])[:, None]
    k = np.arange(number + 1)[:, None]
    return np.exp(ways + k * np.log(shares)[None, :] + (number - k) * np.log1p(-shares)[None, :])


def departure(ranks: np.ndarray, num_ranks: int) -> str:
    """How ranks of true values among draws depart from uniform ones, in words about the draws; empty where unclear.

    Two statistics have known moments for uniform ranks: the mean of u = (rank + ½)/num_ranks is ½, and the mean of
    |u − ½| is ¼, up to the discreteness. The one that is farther off, in standard errors, is named.
    """
    u = (ranks + 0.5) / num_ranks
    shift = (np.mean(u) - 0.5) * math.sqrt(12 * len(u))
    spread = (np.mean(np.abs(u - 0.5)) - 0.25) * math.sqrt(48 * len(u))
    if max(abs(shift), abs(spread)) < 2:
        return ""
    if abs(shift) >= abs(spread):
        return "the draws are too small" if shift > 0 else "the draws are too large"
    return "the draws are too close together" if spread > 0 else "the draws are too far apart"
