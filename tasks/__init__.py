"""Tasks: the adapter contract, the adapters, and the parts that they are composed of."""
