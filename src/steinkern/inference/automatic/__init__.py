"""Right answers by default: one call, nothing tuned.

Four stages, each with rules of its own that are written down with their evidence in the documentation:

1. `gaussian`: from the start to the Gaussian nearest to the target, by Newton's method on clouds of points;
2. `chains`: from there, a hundred Hamiltonian chains in a common metric, until means and spreads have settled;
3. `control_variates`: means and variances from what the chains saw, with Stein's identity against their noise;
4. `support_points`: the particles, as support points of the draws that have these means and variances.

`stages` runs them. `quality` says what is known of the end and what is not to be trusted, `properness` whether there is
a posterior at all, and `other_parts` looks for mass that the chains do not reach. `precision` and `closures` see to
double precision within a program that may not use it.
"""

from .quality import Cost as Cost
from .quality import Quality as Quality
from .sample import Sampled as Sampled
from .sample import sample as sample
