"""What to sample from: log densities, supports, likelihoods, curvature, models, and where particles start.

Targets never see a kernel.
"""
