"""Python's search for garbage, in a process that is soon full of what libraries brought and keep."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = (50_000, 20, 100)


def search_seldom() -> None:
    """Let Python look for garbage less often, and not at all when it ends.

    With torch and MLflow in memory that takes a second of their import, and another one or two at the end.
    """
    gc.set_threshold(*_SELDOM)
    atexit.register(gc.freeze)


@contextmanager
def without_search() -> Iterator[None]:
    """Let Python look for no garbage while many objects are made that stay: it would look at all of them each time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
