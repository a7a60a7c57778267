"""A comparison of particles with chains held aside, as data and as text."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Comparison:
    """Means and standard deviations of particles beside those of chains that started from them.

    The chains leave the target invariant. Where they become independent of their start and keep the particles' moments,
    these are the target's, within the errors of the chains.
    """

    mean_differences: np.ndarray
    """(d,) the particles' means minus those of the chains, in standard deviations of the chains."""
    sd_ratios: np.ndarray
    """(d,) the particles' standard deviations over those of the chains."""
    mean_errors: np.ndarray
    """(d,) stated errors of the particles' means, in standard deviations: the difference and the standard error of the
    chains, added in quadrature."""
    sd_errors: np.ndarray
    """(d,) relative stated errors of the particles' standard deviations, likewise."""
    r_hat: float
    """The largest R-hat of a coordinate: near 1 where the chains no longer depend on their start."""
    chains: int
    transitions: int
    """The number of transitions of each chain that were compared, after those that adapt the step size."""
    gradients: int
    """The number of gradients that the chains evaluated."""

    def in_words(self) -> str:
        """The comparison in one line."""
        low, high = float(np.min(self.sd_ratios)), float(np.max(self.sd_ratios))
        return (
            f"Beside {self.chains} chains held aside: means differ by up to "
            f"{float(np.max(np.abs(self.mean_differences))):.2g} sd, sds are {low:.2f} to {high:.2f} of theirs; known "
            f"to {float(np.max(self.mean_errors)):.2g} sd and {float(np.max(self.sd_errors)):.0%}, R-hat "
            f"{self.r_hat:.2f}"
        )
