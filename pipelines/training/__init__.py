"""A run from its first moment to its last file: loop, optimiser, artifacts, Ray Train."""
