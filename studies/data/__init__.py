"""Datasets: where they come from, how their originals are parsed, and how they are read."""
