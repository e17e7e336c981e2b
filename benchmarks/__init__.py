"""Benchmarks: `python -m benchmarks`, from a checkout."""
