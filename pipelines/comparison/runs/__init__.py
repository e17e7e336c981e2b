"""Runs as rows of tables: which may be compared, how each query did, what each cost."""
