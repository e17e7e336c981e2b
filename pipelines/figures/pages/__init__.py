"""HTML pages of examples and of attention, drawn from the records that evaluations leave."""
