"""Random changes of sets and captions in training."""
