"""Targets: log densities, supports, likelihoods, curvature, models and initial particles.

They do not depend on kernels.
"""
