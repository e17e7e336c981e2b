"""Pages and sections of the documentation that are generated from the code."""
