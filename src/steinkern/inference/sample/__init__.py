"""`sample`: particles of a posterior without settings to tune.

The function runs three stages; `docs/sample.md` has their rules and the evidence for them.

1. `start`: fits the Gaussian nearest to the target (`gaussian`) by Newton's method on clouds of points, and looks for
   mass that chains started from it would not reach (`second_component`).
2. `chains`: runs a hundred Hamiltonian chains in a common metric from draws of this Gaussian, until their means and
   standard deviations have converged.
3. `particles`: estimates means and covariances from the draws, with control variates (`control_variates`), chooses the
   draws that become particles (`thinning`), and computes the numbers by which they are judged.

`properness` detects densities without finite mass.

Only the target's value and derivatives and the transitions of the chains are compiled, and run in JAX's default
precision. All other arithmetic is NumPy's, in float64 (`whitening`, `randomness`).
"""

from .sample import sample as sample
