"""Classification of images with Bayesian networks, and images of another kind: beyond the paper."""
