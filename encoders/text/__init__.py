"""Encoders of captions and questions, and what they share: vocabularies and word vectors."""
