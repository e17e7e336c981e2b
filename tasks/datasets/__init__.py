"""Corpora on disk, and readers of the formats that others publish."""
