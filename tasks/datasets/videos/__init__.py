"""Readers of videos' captions and splits."""
