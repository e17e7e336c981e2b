"""Retrieval models: dual encoders, cross-encoders, HGR; embeddings and scores of whole splits."""
