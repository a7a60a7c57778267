"""The paper's two-dimensional study: Figure 1 and the appendix figures."""
