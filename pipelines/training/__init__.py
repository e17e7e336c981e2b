"""Training: the loop, optimisers, checkpoints, records, Ray Train, sweeps."""
