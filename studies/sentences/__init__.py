"""Sentence classification with half-Bayesian recurrent networks: Table 2 of the paper."""
