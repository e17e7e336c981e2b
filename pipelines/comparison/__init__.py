"""What `compare` is made of: groups of runs, tables, significance, figures."""
