"""Encoders map raw inputs or stored features to sets of vectors."""
