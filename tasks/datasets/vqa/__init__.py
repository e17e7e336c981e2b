"""Readers of questions and answers."""
