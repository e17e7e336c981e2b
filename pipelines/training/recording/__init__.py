"""Records of a run: its description, its artifacts, and the runs of tasks trained together."""
