"""Readers of published features, into a feature store."""
