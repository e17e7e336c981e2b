"""Scores of embeddings against embeddings."""
