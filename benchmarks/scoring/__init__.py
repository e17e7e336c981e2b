"""Scoring: objectives, similarities, ranks and official metrics."""
