"""Cross-attention encoders of a pair of sets."""
