"""Soft assignment of elements to learned centres, by softmax or optimal transport, and a sum for each centre."""
