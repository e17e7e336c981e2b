"""Which differences are more than luck."""
