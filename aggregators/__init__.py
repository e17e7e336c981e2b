"""Functions from a set of features to one vector, or to a few; one idea a file, grouped in rooms."""
