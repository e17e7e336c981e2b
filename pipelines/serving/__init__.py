"""What `serve` is made of: the schema, the checks at the door, the model behind it, and Ray Serve."""
