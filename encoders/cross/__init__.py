"""Encoders of both sets of a pair, by attention to each other."""
