"""Aggregators as modules of other frameworks."""
