"""Encoders in which the two sets of a pair look at each other."""
