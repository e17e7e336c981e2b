"""Faults on purpose: what a run survives, and what its weights are afterwards."""
