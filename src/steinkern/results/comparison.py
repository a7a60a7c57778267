"""A comparison of particles with chains held aside, as data and as text."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Comparison:
    """Means and standard deviations of particles beside those of chains that started from them.

    Draws of the target stay draws of it under the chains. So where the chains forget their start and their moments are
    those of the particles, the particles have the target's moments, as far as the chains can tell.
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
    """The largest over the coordinates: near 1 where the chains have forgotten the particles they started from."""
    chains: int
    transitions: int
    """The number of transitions of each chain that were compared, after those that adapt the step size."""
    gradients: int
    """What the chains took."""

    def in_words(self) -> str:
        """In a line."""
        low, high = float(np.min(self.sd_ratios)), float(np.max(self.sd_ratios))
        return (
            f"Beside {self.chains} chains held aside: means differ by up to "
            f"{float(np.max(np.abs(self.mean_differences))):.2g} sd, sds are {low:.2f} to {high:.2f} of theirs; known "
            f"to {float(np.max(self.mean_errors)):.2g} sd and {float(np.max(self.sd_errors)):.0%}, R-hat "
            f"{self.r_hat:.2f}"
        )
