"""Sorted sums in C and in Triton, for where torch's own sort is slow."""
