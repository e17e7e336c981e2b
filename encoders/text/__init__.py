"""Encoders of captions and questions, tokenizers, vocabularies and word vectors."""
