"""What everything else is built on: types, particles, linear operators, metrics, files and checkpoints."""
