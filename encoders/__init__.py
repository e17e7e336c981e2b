"""From raw inputs or stored features to a set in the joint width."""
