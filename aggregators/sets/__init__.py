"""Aggregators that make K vectors of a set: slots, PIE-Net and a transformer's queries."""
