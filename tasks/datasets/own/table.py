"""A table of one's own: paths of pictures or videos with captions, or with questions and answers, a few a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.errors import InputError
from infra.files import identity
from infra.registry import READERS
from tasks.datasets.own.columns import Columns, find_columns
from tasks.datasets.own.division import USUAL_SHARES, Drawn
from tasks.datasets.own.rows import grouped, rows_of
from tasks.datasets.own.table_file import TableFile
from tasks.datasets.reader import Reader, Reading


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
    """What each picture or video is called; its path, where nothing is said. Needed where there are features alone."""
    split_column: str = ""
    """train, val or test; `validation`, `dev` and the like are understood."""
    split: str = ""
    """The shares of train, val and test, drawn by lot: 80/10/10 where there is no column."""
    seed: int = 0
    """Of that draw."""
    images: Path | None = None
    """Folder that the paths start from; that of the table where nothing is said."""

    def read(self) -> Reading:
        """Return the rows of the table, those of one picture or video together, in the order in which they begin."""
        if not self.file:
            raise InputError("--file names no table")
        if self.split and self.split_column:
            raise InputError("give --split or --split-column, not both")
        drawn = Drawn(split=self.split or USUAL_SHARES, seed=self.seed)
        opened = [TableFile.open(path) for path in self.file]
        said = {
            part: getattr(self, f"{part}_column")
            for part in ("id", "image", "video", "text", "question", "answer", "split")
        }
        columns = find_columns(opened[0].names, said, divided=bool(self.split))
        for other in opened[1:]:
            if lacking := [name for name in columns.named.values() if name not in other.names]:
                raise InputError(
                    f"{other.path}: has no column {', '.join(lacking)}, which {opened[0].path} has"
                )
        folder = self.images or self.file[0].parent
        return Reading(
            of="questions" if columns.answer else "captions",
            rows=grouped(
                rows_of(opened, columns),
                folder=folder,
                splits=None if columns.split else drawn,
                questions=bool(columns.answer),
            ),
            source={
                "files": identity(*self.file),
                "columns": columns.named,
                **({} if columns.split else asdict(drawn)),
            },
            images=folder.absolute() if columns.media else "",
            notes=tuple(self._notes(opened, columns, drawn)),
        )

    def _notes(self, opened: Sequence[TableFile], columns: Columns, drawn: Drawn) -> Iterator[str]:
        yield from (f"guessed: {line}" for line in columns.guessed)
        if separators := {file.separator for file in opened} - {"", ",", "\t"}:
            yield f"guessed: fields are separated by {' and '.join(map(repr, separators))}"
        if not columns.split:
            said = "" if self.split else " (--split says others, --split-column a column of them)"
            yield f"{drawn}{said}"
