"""Objectives that kill or stop processes in training, named by tests as `faulty:KilledOften`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from torch import Tensor

from polypool.tasks.objectives.infonce import InfoNCE


class KilledOften(InfoNCE):
    """Sends SIGKILL to its own process at each of `epochs`, once for each file in `markers`."""

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
    """Sends SIGTERM to `process` at `epoch`, once, and waits until a run's folder has the file `stop`."""

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
