"""Kernels: scalar and matrix-valued ones, their bandwidths, the sums over pairs, and the diagnostics built on them.

Kernels never see a target: scores arrive as data.
"""
