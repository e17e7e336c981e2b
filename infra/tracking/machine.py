"""The machine that a run was started on, as the system describes it: no name of a host, nor an address."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from pathlib import Path

_CPU = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")


def machine() -> str:
    """Return system, processor and GPUs: `Linux x86_64, 16 x AMD EPYC 9654, 1 x NVIDIA H100`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    (cpu, *_) = [*_found(_CPU, "model name"), platform.processor() or "unknown processor"]
    gpus = Counter(name for file in sorted(_GPUS.glob("*/information")) for name in _found(file, "Model")[:1])
    parts = [f"{platform.system()} {platform.machine()}", f"{cores} x {cpu}"]
    return ", ".join([*parts, *(f"{count} x {name}" for name, count in gpus.items())])


def _found(file: Path, name: str) -> list[str]:
    """Return the values of a name in a file of lines `name : value`."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return []
    return [" ".join(value.split()) for value in re.findall(rf"^{name}\s*:\s*(\S.*)$", text, re.MULTILINE)]
