"""Recipes in YAML, and their loader."""
