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

_WHOLE = "whole"  # the file in the folder of a complete run; holds the time at which the run ended


class TensorBoard:
    """A folder for `tensorboard --logdir`.

    Args:
        folder: created if new.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = make_folder(folder)
        self._writers: dict[str, SummaryWriter] = {}

    def has_whole(self, record: RunRecord) -> bool:
        """Whether a run is there as it ended; not if it was resumed since."""
        note = self._of(record) / _WHOLE
        return record.ended is not None and note.is_file() and note.read_text() == str(record.ended)

    def points(self, record: RunRecord, points: Sequence[Point]) -> None:
        """Write numbers with the times at which they were logged."""
        writer = self._writer(record)
        for name, value, milliseconds, step in points:
            writer.add_scalar(name, value, step, walltime=milliseconds / 1000)
        writer.flush()

    def pictures(self, record: RunRecord, paths: Sequence[Path]) -> None:
        for path in paths:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            self._writer(record).add_image(path.stem, pixels, dataformats="HWC")

    def close(self, record: RunRecord) -> None:
        """Write settings and results, and mark the folder as complete if the run has ended."""
        writer = self._writer(record)
        assert writer.file_writer is not None
        for summary in hparams(settings(record), results(record)):
            writer.file_writer.add_summary(summary)
        self._writers.pop(record.run_id).close()
        if record.ended is not None:
            (self._of(record) / _WHOLE).write_text(str(record.ended))

    def _writer(self, record: RunRecord) -> SummaryWriter:
        """Return the writer of a run; a new one takes the place of an earlier folder of the run."""
        if record.run_id not in self._writers:
            shutil.rmtree(self._of(record), ignore_errors=True)
            writer = self._writers[record.run_id] = SummaryWriter(str(self._of(record)), flush_secs=5)
            writer.add_text("run", f"{record.tags.get(NOTE, '')}\n\nMLflow: run {record.run_id}")
        return self._writers[record.run_id]

    def _of(self, record: RunRecord) -> Path:
        name = re.sub(r"[^\w.,=()+-]+", "_", record.name or record.run_id)
        return self._folder / f"{name}-{record.run_id[:8]}"
