"""Upper bounds on settings, which may come from untrusted files."""

from __future__ import annotations

LARGEST_NUMBER = 2**31
"""Upper bound of integers in the settings of runs and parts, such as sizes and counts."""
MOST_REPEATED = 1000
"""Upper bound of layers and iterations of a part."""
