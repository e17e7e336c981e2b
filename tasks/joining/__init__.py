"""Several tasks as one: their samples in one order, their models with parts in common."""
