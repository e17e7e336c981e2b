"""Aggregators that choose elements, or make few of many: by learned maps, by score, or by a text."""
