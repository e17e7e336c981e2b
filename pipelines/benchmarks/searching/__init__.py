"""Searching a gallery."""
