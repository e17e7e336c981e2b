"""Readers of published annotations."""
