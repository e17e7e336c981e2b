"""Encoders of images and videos: stored regions, grids and frames, or pixels."""
