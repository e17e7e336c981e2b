"""Encoders: from raw inputs or stored features to sets in the joint width."""
