"""Weighted sums of elements, or a single element: means, soft and learned weights."""
