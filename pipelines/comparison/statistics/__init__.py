"""Statistics of a comparison: intervals, significance and power."""
