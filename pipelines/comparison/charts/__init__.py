"""Figures of a comparison, drawn from its groups."""
