"""Ranks of a gallery: of both directions in one pass, or by a model for the best of a first pass."""
