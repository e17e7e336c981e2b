"""Encoders of texts and regions."""
