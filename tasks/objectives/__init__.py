"""Losses on the score matrix of the global batch."""
