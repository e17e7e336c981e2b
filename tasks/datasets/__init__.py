"""The interface of readers, which turn files of published formats into rows of a corpus or a feature store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polypool.infra.pictures import BOXES
from polypool.tasks.datasets.corpus import CorpusSummary, QuestionSummary
from polypool.tasks.datasets.splits import Published


@dataclass(frozen=True, kw_only=True)
class Features:
    """The set of one image or video.

    Attributes:
        id: of the image or video.
        x_ND: `(N, D)`.
        where: its place in the source, for messages.
        columns: extra columns, `(N, C)` each, by name; the same names for all sets of a reader.
        odd: a warning about the set, which is stored nevertheless.
    """

    id: str
    x_ND: np.ndarray
    where: str
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    odd: str = ""

    @classmethod
    def with_boxes(cls, id: str, x_ND: np.ndarray, box_N4: np.ndarray | None, *, where: str) -> Features:
        """Return a set with its boxes as a column; without boxes, with zeros and a warning."""
        boxes = np.zeros((len(x_ND), 4), np.float32) if box_N4 is None else box_N4
        odd = "boxes that cannot be read; zeros are stored" if box_N4 is None else ""
        return cls(id=id, x_ND=x_ND, where=where, columns={BOXES: boxes}, odd=odd)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The result of a reader. Slow work belongs in the iteration over `rows`, which happens once.

    Attributes:
        of: `captions` if the rows are `Item`, `questions` if they are `Question`; not used for a `FeatureReader`.
        rows: each an `Item`, `Question` or `Features`, in the order of writing; `Skipped` for unusable ones, `Flagged`
            for warnings.
        source: the input files (`infra.files.identity`) and the settings that affect the rows; any JSON value.
        images: the folder that relative paths of pictures or videos start from, and that no path leaves.
        published: published data sets to compare the counts with; empty if none applies.
        notes: lines printed before the rows are read, such as guessed columns.
    """

    of: Literal["captions", "questions"] = "captions"
    rows: Iterable[Any]
    source: Mapping[str, Any]
    images: str | Path = ""
    published: Sequence[Published] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one form of annotations: a dataclass, whose fields are the options of `polypool ingest NAME`.

    A string below a field is its help. A plug-in registers a reader like any other part, as an entry point in the group
    `polypool.readers`::

        @READERS.register("lines")
        @dataclass(frozen=True, kw_only=True)
        class Lines(Reader):
            \"\"\"Read a text file of `picture TAB caption` lines, all of them to train on.\"\"\"

            file: Path
            \"\"\"The file.\"\"\"

            def read(self) -> Reading:
                return Reading(rows=self._items(), source={"files": identity(self.file)}, images=self.file.parent)

            def _items(self):
                for number, line in enumerate(self.file.open(encoding="utf-8"), start=1):
                    path, _, caption = line.partition("\\t")
                    yield Item(id=path, split="train", captions=(caption,), path=path)
    """

    @abstractmethod
    def read(self) -> Reading:
        """Read the files.

        Raises:
            InputError: a missing, truncated or malformed file, here or when the rows are read.
        """

    def remarks(self, summary: CorpusSummary | QuestionSummary) -> Iterator[str]:
        """Yield lines printed after the counts of the corpus, such as the origin of a split."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class FeatureReader(Reader):
    """Reads one form of features into a store; its rows are `Features` and `Skipped`."""
