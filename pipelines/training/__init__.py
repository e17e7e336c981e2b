"""Training: the loop, optimisers, checkpoints, what is recorded, Ray Train, sweeps."""
