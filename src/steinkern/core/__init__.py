"""The base layer: types, particles, compiled programs, messages, files and checkpoints."""
