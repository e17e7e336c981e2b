"""Retrieval models: dual encoders and cross-encoders; embeddings and scores of whole splits."""
