"""Optimisers, which specs name."""
