"""Cross-attention from queries, learned or computed from the set, to its elements."""
