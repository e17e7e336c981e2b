"""Features: the store, and decoding of videos."""
