"""Tasks: the contract of an adapter, the adapters, and the parts that they are composed of."""
