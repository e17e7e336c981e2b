"""Comparison of runs: groups, tables, significance, figures."""
