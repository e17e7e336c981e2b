"""Aggregators: functions from a set of feature vectors to one embedding or a few; one method per file."""
