"""Numbers measured once on a machine and kept for later processes, so that every run decides alike by them.

They are in the user's cache, `~/.cache/polypool`, or below `XDG_CACHE_HOME`.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import write_json
from polypool.infra.storage import user_cache


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
        with suppress(OSError, RuntimeError, InputError):
            user_cache().mkdir(parents=True, exist_ok=True)
            write_json(user_cache() / f"{name}.json", numbers)
    return numbers[what]


def _numbers(name: str) -> dict[str, float]:
    """Read the numbers that are kept; none where the file is not what was written."""
    try:
        text = (user_cache() / f"{name}.json").read_text()
        return {what: float(number) for what, number in json.loads(text).items()}
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError):
        return {}
