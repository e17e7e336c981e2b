"""Corpora and feature stores of published formats: the contract of a reader, which turns files into a corpus's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.published_counts import Published
from polypool.tasks.datasets.questions import Question, QuestionSummary


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The result of a reader; only its rows may take long, and they are read once.

    Attributes:
        of: whether the rows are items with captions (`Item`), or questions (`Question`).
        rows: in the order in which they are written, with what cannot be used or is odd.
        source: the files (`infra.files.identity`) and settings that decide what is read; anything that JSON can hold.
        images: the folder that relative paths of pictures or videos start from, and that no path leaves.
        published: the data sets that these may be; empty where that cannot be known.
        notes: lines that are printed before the rows are read, such as what was guessed.
    """

    of: Literal["captions", "questions"] = "captions"
    rows: Iterable[Item | Question | Skipped | Flagged]
    source: Mapping[str, Any]
    images: str | Path = ""
    published: Sequence[Published] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one form of annotations: a dataclass, whose fields are the options of `polypool ingest NAME`.

    A string below a field is its help. A plug-in's is registered like any other part, in `polypool.readers`::

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
        """Return what the files hold.

        Raises:
            InputError: a file is missing, cut short or of another form, here or when the rows are read.
        """

    def remarks(self, summary: CorpusSummary | QuestionSummary) -> Iterator[str]:
        """Yield lines that are printed after the counts of what was written, such as how a split was made."""
        yield from ()
