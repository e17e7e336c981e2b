"""Processes: signals, the wrapping of verbs, forks, locks on files, memory and the terminal."""
