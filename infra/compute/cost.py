"""What work costs, in a unit that other work on the same machine changes little.

Wall-clock time of a shared machine says who else was at work. What is counted here is the processor time of this
process, all its threads together, and it is divided by that of a probe timed just before and just after: a product of
two 512 x 512 matrices in float32. Neighbours who slow the one down (a shared core, cache or clock) slow the other, too.
Processes that this one starts, such as decoders of videos, are not in it. On an accelerator, which runs of ours do not
share, the time is that which passes until it has done all that was asked of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIDE = 512
"""Rows and columns of the probe's matrices."""
UNIT = f"products of two {SIDE} x {SIDE} matrices"
"""What costs are counted in."""
_PRODUCTS = 8
"""Products of a probe, of which the mean counts: some 30 ms of a core."""


def seconds(device: torch.device) -> float:
    """Return the seconds that this process has spent on a device so far, counted from any point."""
    if device.type == "cpu":
        return time.process_time()
    import torch

    torch.accelerator.synchronize(device)
    return time.perf_counter()


def probe(device: torch.device) -> float:
    """Return the seconds of one product, the mean of some; no random numbers are drawn."""
    import torch

    matrix = torch.linspace(-1.0, 1.0, SIDE * SIDE, dtype=torch.float32, device=device).reshape(SIDE, SIDE)
    with torch.autocast(device.type, enabled=False), torch.inference_mode():
        matrix @ matrix  # what is set up or loaded on first use
        started = seconds(device)
        for _ in range(_PRODUCTS):
            matrix @ matrix
        return (seconds(device) - started) / _PRODUCTS


class CostMeter:
    """Counts the cost of what happens after it was made.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self._probe = probe(device)
        self._since = seconds(device)

    def lap(self) -> float:
        """Return the cost, in `UNIT`, since the meter was made or the last lap; `seconds` is then that of this lap."""
        self.seconds = seconds(self.device) - self._since
        again = probe(self.device)
        cost = self.seconds / ((self._probe + again) / 2)
        self._probe, self._since = again, seconds(self.device)
        return cost
