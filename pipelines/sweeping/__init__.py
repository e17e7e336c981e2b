"""What `sweep` is made of: the grid of runs, what is done of it, and carrying it out."""
