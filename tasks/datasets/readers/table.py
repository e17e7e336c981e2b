"""A table of your own: paths of pictures or videos with captions, or with questions and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import identity
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reader, Reading
from polypool.tasks.datasets.readers.rows import Columns, Row, find_columns, grouped, row_of
from polypool.tasks.datasets.readers.table_file import TableFile
from polypool.tasks.datasets.splits import USUAL_SHARES, RandomSplits

_PARTS = ("id", "image", "video", "text", "question", "answer", "split")


@READERS.register("table")
@dataclass(frozen=True, kw_only=True)
class Table(Reader):
    """Read a table of your own: CSV, TSV, JSON lines or Parquet, with a picture or video and a text in each row.

    Several rows of one picture are its captions, and so is a list in one row; with questions, several rows of one
    picture and question are its answers. What is not said is guessed by the columns' names, and printed.
    """

    file: tuple[Path, ...]
    """The table; several files have the same columns."""
    image_column: str = ""
    """Paths of pictures."""
    video_column: str = ""
    """Paths of videos, where they are no pictures."""
    text_column: str = ""
    """Captions."""
    question_column: str = ""
    """Questions, where there are no captions."""
    answer_column: str = ""
    """Their answers."""
    id_column: str = ""
    """Id of each picture or video; its path by default. Needed where there are features alone."""
    split_column: str = ""
    """train, val or test; `validation`, `dev` and the like are understood."""
    split: str = ""
    """The shares of random train, val and test splits: 80/10/10 where there is no column."""
    seed: int = 0
    """Of the random splits."""
    images: Path | None = None
    """Folder that the paths start from; by default that of the table."""

    def read(self) -> Reading:
        """Return the rows of the table, those of one picture or video together, in the order in which they begin."""
        if not self.file:
            raise InputError("--file names no table")
        if self.split and self.split_column:
            raise InputError("give --split or --split-column, not both")
        random = RandomSplits(split=self.split or USUAL_SHARES, seed=self.seed)
        opened = [TableFile.open(path) for path in self.file]
        given = {part: getattr(self, f"{part}_column") for part in _PARTS}
        columns = find_columns(opened[0].names, given, divided=bool(self.split))
        for other in opened[1:]:
            if lacking := [name for name in columns.named.values() if name not in other.names]:
                raise InputError(
                    f"{other.path}: has no column {', '.join(lacking)}, which {opened[0].path} has"
                )
        folder = self.images or self.file[0].parent
        splits = None if "split" in columns.named else random
        return Reading(
            of="questions" if columns.questions else "captions",
            rows=grouped(_rows(opened, columns), folder=folder, splits=splits, questions=columns.questions),
            source={
                "files": identity(*self.file),
                "columns": columns.named,
                **(asdict(splits) if splits else {}),
            },
            images=folder.absolute() if "media" in columns.named else "",
            notes=tuple(self._notes(opened, columns, splits)),
        )

    def _notes(
        self, opened: Sequence[TableFile], columns: Columns, splits: RandomSplits | None
    ) -> Iterator[str]:
        yield from columns.guessed
        if separators := {file.separator for file in opened} - {"", ",", "\t"}:
            yield f"guessed: fields are separated by {' and '.join(map(repr, separators))}"
        if splits:
            yield f"{splits}" + (
                "" if self.split else " (--split says others, --split-column a column of them)"
            )


def _rows(files: Sequence[TableFile], columns: Columns) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of files, and what cannot be used of them.

    Raises:
        InputError: a file is damaged.
    """
    for file in files:
        values, torn = file.read(list(dict.fromkeys(columns.named.values())))
        yield from torn
        by_meaning = [values[name] for name in columns.named.values()]
        for number, row in enumerate(zip(*by_meaning, strict=True), start=1):
            yield from row_of(f"{file.path.name}, row {number}", dict(zip(columns.named, row, strict=True)))
