"""Pooling: GPO beside the usual way, and what every aggregator costs."""
