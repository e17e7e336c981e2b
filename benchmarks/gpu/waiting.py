"""Times and peaks of memory of work that a device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import elapsed, memory


def waited(work: Callable[[], Any], device: torch.device) -> Callable[[int], float]:
    """Return what works, waits for the device, and says how many milliseconds that took; it has worked once."""

    def done() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    done()
    return lambda _: 1e3 * elapsed(done)


def peak(work: Callable[[], Any], device: torch.device) -> float:
    """Return by how many MB the memory of a device grows at most; on the CPU by how many this process ever did."""
    if device.type != "cuda":
        before = memory()["VmRSS"]
        work()
        return max(memory()["VmHWM"] - before, 1e-6)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6
