"""Objectives that go wrong in a worker, named by tests as `faulty:Name`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch import Tensor

from infra.errors import InputError
from tasks.objectives.infonce import InfoNCE


class KilledOnce(InfoNCE):
    """Ends its process without a word after some epochs, the first time only."""

    def __init__(self, *, marker: str, epoch: float) -> None:
        super().__init__()
        self.marker, self.epoch = Path(marker), epoch

    def forward(self, *args: Tensor, epoch: float) -> Tensor:
        if epoch >= self.epoch and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*args, epoch=epoch)


class Refusing(InfoNCE):
    """Finds its input wrong."""

    def forward(self, *args: Tensor, epoch: float) -> Tensor:
        raise InputError("the moon is in the wrong phase: wait a week")
