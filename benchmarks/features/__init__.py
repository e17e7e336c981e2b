"""Features: the store, extraction from images and videos, and decoding."""
