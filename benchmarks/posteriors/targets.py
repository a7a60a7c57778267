"""All targets by name: 28 everyday posteriors of 2 to 100 dimensions.

Rules of the sampler are fixed on the half called "rules" and reported on all. The halves were chosen before the sampler
was run, so that each has some of every kind:

    kind          rules                                            held out
    regressions   linear-raw, logistic-wide, robust, softmax,      linear-quadratic, logistic-raw, poisson,
                  gamma                                            negative-binomial, weibull
    hierarchies   schools-noncentred, growth-centred               schools-centred, counties
    shapes        gaussian-100, funnel, four-modes                 gaussian-anisotropic, banana
    series        ar2, garch                                       stochastic-volatility, hidden-markov
    curves        gaussian-process, logistic-growth                lotka-volterra, last-layer, mixture
"""

from . import curves, hierarchies, regressions, series, shapes
from .target import Target

KINDS = {
    "regressions": regressions.TARGETS,
    "hierarchies": hierarchies.TARGETS,
    "shapes": shapes.TARGETS,
    "series": series.TARGETS,
    "curves": curves.TARGETS,
}

TARGETS: dict[str, Target] = {target.name: target for targets in KINDS.values() for target in targets}
