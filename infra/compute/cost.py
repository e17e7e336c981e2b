"""Computational cost in a unit that depends little on other load of the machine.

The CPU time of this process (all threads) is divided by the CPU time of a benchmark run just before and just after: a
product of two 512 x 512 matrices in float32. Contention for a core, cache or clock slows both equally. Other processes,
such as video decoders, are not included. On an accelerator, which is not shared, both times are wall-clock times until
all queued work is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIDE = 512
"""Rows and columns of the benchmark's matrices."""
UNIT = f"products of two {SIDE} x {SIDE} matrices"
"""Unit of costs."""
_PRODUCTS = 8
"""Products per benchmark, averaged: about 30 ms of a core."""


def seconds(device: torch.device) -> float:
    """Return the time that this process has spent on a device, in seconds from an arbitrary origin."""
    if device.type == "cpu":
        return time.process_time()
    import torch

    torch.accelerator.synchronize(device)
    return time.perf_counter()


def probe(device: torch.device) -> float:
    """Return the mean time of one benchmark product, in seconds; draws no random numbers."""
    import torch

    matrix = torch.linspace(-1.0, 1.0, SIDE * SIDE, dtype=torch.float32, device=device).reshape(SIDE, SIDE)
    with torch.autocast(device.type, enabled=False), torch.inference_mode():
        matrix @ matrix  # warm up
        started = seconds(device)
        for _ in range(_PRODUCTS):
            matrix @ matrix
        return (seconds(device) - started) / _PRODUCTS


class CostMeter:
    """Measures the cost of work on a device since its creation.

    Attributes:
        seconds: time of the last lap; CPU time on a CPU.
        busy: seconds of it in which a GPU computed steps; 0 on a CPU. A step without a CUDA graph includes the gaps in
            which the GPU waits for kernel launches.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = self.busy = 0.0
        self._steps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._probe = probe(device)
        self._since = seconds(device)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the time of the block's work on a GPU as busy."""
        if self.device.type != "cuda":
            yield
            return
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._steps.append((begin, end))

    def lap(self) -> float:
        """Return the cost in `UNIT` since the creation or the last lap; set `seconds` and `busy`."""
        self.seconds = seconds(self.device) - self._since
        self.busy = sum(begin.elapsed_time(end) for begin, end in self._steps) / 1e3
        self._steps.clear()
        again = probe(self.device)
        cost = self.seconds / ((self._probe + again) / 2)
        self._probe, self._since = again, seconds(self.device)
        return cost
