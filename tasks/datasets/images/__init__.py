"""Readers of images' captions and splits."""
