"""Similarities between embeddings."""
