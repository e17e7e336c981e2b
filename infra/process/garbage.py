"""Python's search for garbage, in a process that is soon full of what libraries brought and keep."""

from __future__ import annotations

import atexit
import gc

_SELDOM = (50_000, 20, 100)


def search_seldom() -> None:
    """Let Python look for garbage less often, and not at all when it ends.

    With torch and MLflow in memory that takes a second of their import, and another one or two at the end.
    """
    gc.set_threshold(*_SELDOM)
    atexit.register(gc.freeze)
