"""Readers of your own pictures and videos with texts: folders, tables, shards, data sets of Hugging Face."""
