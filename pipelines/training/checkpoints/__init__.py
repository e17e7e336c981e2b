"""Checkpoints of a run: their format, where they are kept, and the best one."""
