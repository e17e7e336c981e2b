"""Ranks, recalls and protocols of retrieval, from blocks of scores."""
