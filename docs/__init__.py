"""The documentation site: its own pages, and what generates the others from the code (`make docs`)."""
