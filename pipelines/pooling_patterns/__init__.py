"""Known pooling patterns that GPO is to learn (table 11 of VSE-infinity)."""
