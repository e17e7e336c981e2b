"""Sorted sums in C and in Triton, for devices on which torch's sort is slow."""
