"""Bayesian networks on the UCI regressions: Table 1 and Figure 2 (c, d) of the paper."""
