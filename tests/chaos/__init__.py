"""Injected faults: what a run survives, and its weights afterwards."""
