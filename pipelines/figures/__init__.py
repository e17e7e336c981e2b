"""Figures and pages of runs, and the style they share."""
