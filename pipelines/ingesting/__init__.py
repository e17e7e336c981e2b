"""The readers that `ingest` offers, as commands."""
