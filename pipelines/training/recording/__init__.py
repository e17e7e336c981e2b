"""What is recorded of a run: what it is found by, what it leaves behind, and the runs of tasks trained together."""
