"""An objective that ends its worker, named by tests as `faulty:KilledOften`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from torch import Tensor

from polypool.tasks.objectives.infonce import InfoNCE


class KilledOften(InfoNCE):
    """Ends its process without a word when so many epochs are trained, once for each marker."""

    def __init__(self, *, markers: list[str], epochs: list[float]) -> None:
        super().__init__()
        self.ends = list(zip(map(Path, markers), epochs, strict=True))

    def forward(self, *args: Tensor, epoch: float) -> Tensor:
        for marker, at in self.ends:
            if epoch >= at and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*args, epoch=epoch)


class StoppedOnce(InfoNCE):
    """Sends a process SIGTERM after some epochs, the first time only, and waits until a run is asked to stop."""

    def __init__(self, *, runs: str, epoch: float, process: int) -> None:
        super().__init__()
        self.runs, self.epoch, self.process = Path(runs), epoch, process

    def forward(self, *args: Tensor, epoch: float) -> Tensor:
        if epoch >= self.epoch and not (marker := self.runs / "stopped").exists():
            marker.touch()
            os.kill(self.process, signal.SIGTERM)
            while not [*self.runs.glob("*/stop")]:
                time.sleep(0.01)
        return super().forward(*args, epoch=epoch)
