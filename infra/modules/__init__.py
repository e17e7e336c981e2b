"""Modules of torch that are faster on a CPU than torch's own, with the same parameters and names."""
