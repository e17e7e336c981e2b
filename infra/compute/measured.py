"""Benchmark results, measured once per machine and cached, so that all runs make the same choices.

They are stored in `~/.cache/polypool`, or below `XDG_CACHE_HOME`.
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
    """Return lines that identify this machine's processor: architecture, model and instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().partition("\n\n")[0].splitlines() if info.exists() else [platform.processor()]
    able = [line for line in lines if line.startswith(("flags", "Features", "model name"))] or lines
    return [platform.machine(), *able]


def cached_number(name: str, what: str, measure: Callable[[], float]) -> float:
    """Return a number from the cache file `name`; on a miss, measure it, and store it if the cache is writable."""
    numbers = _numbers(name)
    if what not in numbers:
        measured = measure()
        numbers = {**_numbers(name), what: measured}  # other processes may have measured meanwhile
        with suppress(OSError, RuntimeError, InputError):
            user_cache().mkdir(parents=True, exist_ok=True)
            write_json(user_cache() / f"{name}.json", numbers)
    return numbers[what]


def _numbers(name: str) -> dict[str, float]:
    """Read the cached numbers; empty if the file is invalid."""
    try:
        text = (user_cache() / f"{name}.json").read_text()
        return {what: float(number) for what, number in json.loads(text).items()}
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError):
        return {}
