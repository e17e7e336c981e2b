"""Numbers measured once on a machine and kept for later processes, so that every run decides alike by them.

They are in the user's cache, `~/.cache/polypool`, or below `XDG_CACHE_HOME`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of the user's cache, which need not exist.

    Raises:
        RuntimeError: the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polypool"


def processor() -> list[str]:
    """Return lines that tell this machine's processor from others: its architecture, model and instructions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().partition("\n\n")[0].splitlines() if info.exists() else [platform.processor()]
    able = [line for line in lines if line.startswith(("flags", "Features", "model name"))] or lines
    return [platform.machine(), *able]


def kept(name: str, what: str, measure: Callable[[], float]) -> float:
    """Return a number from the file `name` of the cache, or a new one, which is added to it if it can be written."""
    numbers = _numbers(name)
    if what not in numbers:
        measured = measure()
        numbers = {**_numbers(name), what: measured}  # other processes measure, too
        with suppress(OSError, RuntimeError):
            path = cache_folder() / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(numbers, indent=1))
            fresh.replace(path)
    return numbers[what]


def _numbers(name: str) -> dict[str, float]:
    """Read the numbers that are kept; none where the file is not what was written."""
    try:
        text = (cache_folder() / f"{name}.json").read_text()
        return {what: float(number) for what, number in json.loads(text).items()}
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError):
        return {}
