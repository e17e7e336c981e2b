"""Miners: the negatives of a batch that count in an objective."""
