"""HTML pages of examples and of attention, drawn from what evaluations record."""
