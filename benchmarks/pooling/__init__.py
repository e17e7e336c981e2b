"""Pooling: GPO against the usual way, and the cost of every aggregator."""
