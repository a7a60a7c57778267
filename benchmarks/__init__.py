"""Benchmarks: run from the root of the repository; results are kept as text beside them."""
