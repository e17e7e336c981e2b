"""Aggregators in which elements look at each other, or at the other modality, before they are pooled."""
