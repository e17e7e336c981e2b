"""GPO on known pooling patterns: `python -m benchmarks.gpo_patterns`, after table 11 of VSE-infinity."""
