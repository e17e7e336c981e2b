"""Aggregators that ask a set by queries, learned ones or the set's own mean, and attend to its elements."""
