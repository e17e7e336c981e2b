"""Figures of what a run's aggregators did, and the style that all figures share."""
