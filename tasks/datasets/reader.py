"""The base class of readers, which turn files of one published form into the rows of a corpus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infra.store.findings import Flagged, Skipped
from tasks.datasets.corpus import CorpusSummary, Item
from tasks.datasets.published import Published
from tasks.datasets.questions import Question, QuestionSummary


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a reader makes of its files; nothing but the rows may take long, and they are read once."""

    of: Literal["captions", "questions"] = "captions"
    """What the rows are: items with captions (`Item`), or questions (`Question`)."""
    rows: Iterable[Item | Question | Skipped | Flagged]
    """The rows, in the order in which they are written, and what cannot be used or is odd."""
    source: Mapping[str, Any]
    """The files (`infra.files.identity`) and settings that decide what is read; anything that JSON can hold."""
    images: str | Path = ""
    """The folder that relative paths of pictures or videos start from, and that no path leaves."""
    published: Sequence[Published] = ()
    """The data sets that these may be; none where nobody can know."""
    notes: Sequence[str] = ()
    """Lines that are printed before the rows are read, such as what was guessed."""


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one form of annotations: a dataclass, whose fields are the options of `python -m pipelines.ingest NAME`.

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
        """Yield lines that are printed after what was written was counted, such as how a split was made."""
        yield from ()
