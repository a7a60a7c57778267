"""Posteriors by minibatches: `fit` without a sampler beside SGLD, pSGLD, a mean-field Gaussian and SVGD."""
