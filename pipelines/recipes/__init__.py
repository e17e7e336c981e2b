"""Complete runs by name, a file for each data set or paper."""
