"""Everyday posteriors with known means and standard deviations, and methods run on them with nothing tuned."""
