"""Bayesian logistic regression on Covertype: Figure 2 (a, b) of the paper."""
