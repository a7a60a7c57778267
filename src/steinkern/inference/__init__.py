"""Runs: `fit`, its loop, recovery, checkpoints and checks; and `sample`."""
