"""Scalar and matrix-valued kernels, their bandwidths, the sums over pairs, and the diagnostics built on them.

Kernels do not call the target: its scores are passed to them as data.
"""
