"""`sample`: particles of a posterior without settings to tune.

The function runs four stages; `docs/default.md` has their rules and the evidence for them.

1. `start`: fits the Gaussian nearest to the target (`gaussian`) by Newton's method on clouds of points, and looks for
   mass that chains started from it would not reach (`second_component`).
2. `chains`: runs a hundred Hamiltonian chains in a common metric from draws of this Gaussian, until their means and
   standard deviations have converged (`convergence`).
3. `particles`: estimates means and covariances from the draws, with control variates (`control_variates`), and computes
   support points of the draws (`support_points`) that have these moments.
4. `quality`: measures the quality of the particles and makes the warnings; `properness` detects densities without
   finite mass.

Only the target's value and derivatives, the transitions of the chains and the support points are compiled. All other
arithmetic is NumPy's (`whitening`, `randomness`), which needs no compilation. `precision` and `closures` provide double
precision where JAX's default is single precision.
"""

from .quality import Cost as Cost
from .quality import Quality as Quality
from .sample import Sampled as Sampled
from .sample import sample as sample
