"""Aggregators that weigh elements and add them up, or pick one: means, soft and learned ones."""
