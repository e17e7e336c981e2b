"""Data preparation: ingest, feature extraction, known public data sets, rendered corpora."""
