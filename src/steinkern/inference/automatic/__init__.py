"""Right answers by default: one call, nothing tuned.

Four stages, each with rules of its own that are written down with their evidence in the documentation:

1. `start`: from one particle to the Gaussian nearest to the target (`gaussian`), by Newton's method on clouds of
   points, and a look for mass that chains from it would not reach (`other_parts`);
2. `chains`: from there, a hundred Hamiltonian chains in a common metric, until means and spreads have settled
   (`convergence`);
3. `particles`: means and variances from what the chains saw, with Stein's identity against their noise
   (`control_variates`), and particles that have them, as support points of the draws (`support_points`);
4. `quality`: what is known of the particles and what is not to be trusted; `properness` says whether there is a
   posterior at all.

`sample` runs them. Programs hold the target's value and derivatives, the chains' transitions and little else: between
them all arithmetic is NumPy's (`whitening`, `randomness`), which compiles nothing. `precision` and `closures` see to
double precision within a program that may not use it.
"""

from .quality import Cost as Cost
from .quality import Quality as Quality
from .sample import Sampled as Sampled
from .sample import sample as sample
