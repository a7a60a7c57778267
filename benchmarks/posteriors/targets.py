"""All targets by name: 28 everyday posteriors of 2 to 100 dimensions, and 12 NumPyro models of 8 to 150.

Rules of the sampler are fixed on the half called "rules" and reported on all. The halves were chosen before the sampler
was run, so that each has some of every kind:

    kind          rules                                            held out
    regressions   linear-raw, logistic-wide, robust, softmax,      linear-quadratic, logistic-raw, poisson,
                  gamma                                            negative-binomial, weibull
    sparse        horseshoe, sparse-dirichlet                      network-precisions
    hierarchies   schools-noncentred, growth-centred, cells,       schools-centred, counties, crossed,
                  scale-of-36                                      correlated-slopes
    shapes        gaussian-100, funnel, four-modes                 gaussian-anisotropic, banana
    series        ar2, garch, volatility-147                       stochastic-volatility, hidden-markov, rare-state,
                                                                   smoothing
    curves        gaussian-process, logistic-growth,               lotka-volterra, last-layer, mixture, latent-process
                  pharmacokinetics
"""

from . import curves, hierarchies, models, regressions, series, shapes
from .target import Target

KINDS = {
    "regressions": regressions.TARGETS,
    "sparse": models.SPARSE,
    "hierarchies": (*hierarchies.TARGETS, *models.HIERARCHIES),
    "shapes": shapes.TARGETS,
    "series": (*series.TARGETS, *models.SERIES),
    "curves": (*curves.TARGETS, *models.CURVES),
}

TARGETS: dict[str, Target] = {target.name: target for targets in KINDS.values() for target in targets}
