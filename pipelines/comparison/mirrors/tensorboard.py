"""Runs in TensorBoard: a folder for each, with curves, figures, settings and results."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from polypool.infra.files import make_folder
from polypool.infra.tracking import RunRecord
from polypool.infra.tracking.tracker import NOTE, Point
from polypool.pipelines.comparison.mirrors import results, settings

_WHOLE = "whole"
"""The file in the folder of a complete run; holds the time at which the run ended."""


class TensorBoard:
    """A folder for `tensorboard --logdir`.

    Args:
        folder: created if new.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = make_folder(folder)

    def has_whole(self, record: RunRecord) -> bool:
        """Whether a run is there as it ended; not if it was resumed since."""
        note = self._of(record) / _WHOLE
        return record.ended is not None and note.is_file() and note.read_text() == str(record.ended)

    def open(self, record: RunRecord) -> Events:
        """Begin a run's folder, in place of an earlier one of the run."""
        folder = self._of(record)
        shutil.rmtree(folder, ignore_errors=True)
        return Events(folder, record)

    def _of(self, record: RunRecord) -> Path:
        name = re.sub(r"[^\w.,=()+-]+", "_", record.name or record.run_id)
        return self._folder / f"{name}-{record.run_id[:8]}"


class Events:
    """A run's folder.

    Args:
        folder: which is new.
        record: of the run, as it is now.
    """

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self._folder, self._writer = folder, SummaryWriter(str(folder), flush_secs=5)
        self._writer.add_text("run", f"{record.tags.get(NOTE, '')}\n\nMLflow: run {record.run_id}")

    def points(self, points: Sequence[Point]) -> None:
        """Write numbers with the times at which they were logged."""
        for name, value, milliseconds, step in points:
            self._writer.add_scalar(name, value, step, walltime=milliseconds / 1000)
        self._writer.flush()

    def pictures(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with Image.open(path) as image:
                self._writer.add_image(path.stem, np.asarray(image.convert("RGB")), dataformats="HWC")

    def close(self, record: RunRecord) -> None:
        """Write settings and results, and mark the folder as complete if the run has ended."""
        file = self._writer.file_writer
        assert file is not None
        for summary in hparams(settings(record), results(record)):
            file.add_summary(summary)
        self._writer.close()
        if record.ended is not None:
            (self._folder / _WHOLE).write_text(str(record.ended))
