"""Readers of published annotations, and of your own pictures and videos with texts."""
