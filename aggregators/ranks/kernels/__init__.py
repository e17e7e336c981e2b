"""Sorted sums and a narrow GRU in C and in Triton, because torch's operations are slow for them."""
