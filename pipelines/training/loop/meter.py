"""Running means of what steps return, on the device until they are logged."""

from __future__ import annotations

import time

from torch import Tensor


class Meter:
    """Running means, on the device until `flush`."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.steps, self.samples, self.started = 0, 0, time.perf_counter()

    def add(self, values: dict[str, Tensor], samples: int) -> None:
        """Add one step's scalars."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.detach()
            self.counts[name] = self.counts.get(name, 0) + 1
        self.steps, self.samples = self.steps + 1, self.samples + samples

    def flush(self) -> dict[str, float]:
        """Return the means since the last call, each over the steps that had it, and the samples a second."""
        values = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        values["samples_per_second"] = self.samples / (time.perf_counter() - self.started)
        self.__init__()
        return values
