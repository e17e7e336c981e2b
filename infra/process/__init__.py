"""Processes: signals, the wrapper of verbs, output streams and the terminal."""
