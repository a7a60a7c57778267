"""`fit` without a sampler: the paper's method with everything chosen.

1. `plan`: the Gaussian nearest to the target (`automatic.gaussian`), particles from it, and `Untuned`, Matrix-SVGD in
   its metric with a step size by a rule;
2. the run itself, by the loop of every other `fit`;
3. `held_aside`: chains from the particles, whose means and standard deviations the particles are compared with;
4. `refine`: particles that differ from the chains go on with the mixture kernel, where that brings them nearer;
5. `minibatch`: the same with `batch_size=`, from a Gaussian on a sample of the rows, with scores whose noise is small
   around its mean.
"""

from .finish import UNTUNED_WORDS as UNTUNED_WORDS
from .finish import compare_with_chains as compare_with_chains
from .finish import finish as finish
from .plan import Plan as Plan
from .plan import make_plan as make_plan
