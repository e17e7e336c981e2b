"""The rows of `make bench`, each measured beside what it replaces."""
