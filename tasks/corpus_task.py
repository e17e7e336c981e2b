"""Base adapter of tasks whose encoders read images or videos and texts of a corpus."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from polypool.infra.batches import Dataset, Order
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, require
from polypool.tasks.abilities import CountsWords, Scores, Searchable
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.inputs.corpus_inputs import CorpusInputs
from polypool.tasks.run import Run

PIXEL_CHUNK = 32  # images or frames of 512 pixels encoded at once in evaluation: a few GB of feature maps


class CorpusTask(CorpusInputs, TaskAdapter, CountsWords, Scores, Searchable):
    """An adapter composed of `CorpusInputs`, a model, a loss and a protocol; subclasses provide the last three.

    They implement `read`, `model`, `loss`, `scorer`, `rows_and_columns`, `evaluate_scores` and `evaluate`.

    Args:
        run: its complete description.
        assets: of a checkpoint; computed from the corpus if None.
        chunk: samples per forward pass in evaluation; fewer if the model reads pixels.
    """

    def __init__(self, run: Run, assets: dict[str, Any] | None, *, chunk: int) -> None:
        require(at_least(1), chunk=chunk)
        super().__init__(run)
        self.chunk = chunk
        frames = run.data.max_frames if self.modality == "video" else 1
        self.visual_chunk = chunk if self.reads_store else min(chunk, max(1, PIXEL_CHUNK // max(1, frames)))
        self._data: dict[str, Any] = {}
        if assets is None:
            assets = self.new_assets()
        else:
            self.check_assets(assets)
        self.assets = assets

    @abstractmethod
    def read(self, split: str) -> Dataset:
        """Return the samples of a split; `data` caches them."""

    @abstractmethod
    def rows_and_columns(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the ids of the rows and the columns of a split's scores."""

    def new_assets(self) -> dict[str, Any]:
        """Check the run's data, and return the assets of its new encoders.

        Raises:
            InputError: unsuitable data.
        """
        self.check_inputs()
        return self.encoder_assets()

    def data(self, split: str) -> Any:
        if split not in self._data:
            self._data[split] = self.read(split)
        return self._data[split]

    def check_same_data(self, other: CorpusTask, split: str) -> None:
        for side, ours, theirs in zip(
            ("rows", "columns"), self.rows_and_columns(split), other.rows_and_columns(split), strict=True
        ):
            if [*ours] != [*theirs]:
                raise InputError(
                    f"runs on {self.run.data.corpus} and {other.run.data.corpus} cannot be one ensemble: the {side} of "
                    f"their scores of the {split} split differ, such as other {self.samples} or texts"
                )

    def check_batches(self, samples: int) -> None:
        """Check that the training split has at least one batch of samples.

        Raises:
            InputError: it has fewer.
        """
        run = self.run
        Order(size=samples, batch=run.optim.batch, unit=run.epoch_unit, seed=run.seed)


def reads_video_files(adapter: object) -> bool:
    """Whether an adapter's model reads video files instead of stored features or images."""
    return isinstance(adapter, CorpusTask) and adapter.modality == "video" and not adapter.reads_store


def refuse_video_files(adapter: object, what: str) -> None:
    """Refuse a model that reads video files where these are not supported.

    Args:
        adapter: of the model.
        what: name of the caller in messages, in the plural.

    Raises:
        InputError: the model reads video files.
    """
    if reads_video_files(adapter):
        raise InputError(
            f"the model reads video files, and {what} take features, images and texts; `polypool export --out` writes "
            "a folder that polypool.load reads"
        )
