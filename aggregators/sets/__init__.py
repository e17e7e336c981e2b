"""Aggregators that return K vectors per set (slots, PIE-Net and transformer queries) or a distribution."""
