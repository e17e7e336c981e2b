"""Bounds on what settings of strangers may ask for."""

from __future__ import annotations

LARGEST_NUMBER = 2**31
"""What whole numbers in the settings of runs and parts stay below: sizes, counts and the like."""
MOST_REPEATED = 1000
"""Layers and iterations of a part, each of which is made or run in its turn."""
