"""The base layer: types, particles, linear operators, metrics, files and checkpoints."""
