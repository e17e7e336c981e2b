"""The figures of a comparison."""
