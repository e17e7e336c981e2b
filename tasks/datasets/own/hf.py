"""Data sets in the form of Hugging Face's `datasets`: on its hub, or in a local folder; pictures become files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from infra.errors import InputError
from infra.files import make_folder
from infra.registry import READERS
from infra.store.findings import Flagged, Skipped
from tasks.datasets.own.columns import Columns, find_columns
from tasks.datasets.own.division import USUAL_SHARES, Drawn, split_called
from tasks.datasets.own.rows import Row, grouped, row_of
from tasks.datasets.own.written import write_picture
from tasks.datasets.reader import Reader, Reading

if TYPE_CHECKING:
    from datasets import Dataset


@READERS.register("hf")
@dataclass(frozen=True, kw_only=True)
class HuggingFace(Reader):
    """Read a data set that `datasets` loads: by its name on the hub, or a local folder of Parquet, CSV or pictures.

    Its code is never run. Splits are those it has, but for one of `train` alone, which is divided by lot.
    """

    name: str
    """Its name on the hub, such as nlphuji/flickr30k, or a local folder."""
    images: Path
    """Folder that its pictures are written to."""
    config: str = ""
    """Which of several in one."""
    image_column: str = ""
    """Its pictures."""
    text_column: str = ""
    """Captions."""
    question_column: str = ""
    """Questions, where there are no captions."""
    answer_column: str = ""
    """Their answers."""
    split: str = ""
    """The shares of train, val and test, drawn by lot, such as 80/10/10, whatever splits it has."""
    seed: int = 0
    """Of that draw."""

    def read(self) -> Reading:
        """Return the rows of all splits; their pictures are written while they are read."""
        parts = self._loaded()
        first = next(iter(parts.values()))
        said = {name: getattr(self, f"{name}_column") for name in ("image", "text", "question", "answer")}
        columns = find_columns(first.column_names, said | {"id": "", "video": "", "split": ""}, divided=True)
        drawn = None
        if self.split or {split_called(split) for split in parts} == {"train"}:
            drawn = Drawn(split=self.split or USUAL_SHARES, seed=self.seed)
        folder = make_folder(self.images)
        return Reading(
            of="questions" if columns.answer else "captions",
            rows=grouped(
                (
                    row
                    for split, part in parts.items()
                    for row in _rows(part, split, columns, folder, divided=drawn is not None)
                ),
                splits=drawn,
                questions=bool(columns.answer),
            ),
            source={
                "name": self.name,
                "config": self.config,
                "fingerprints": {split: part._fingerprint for split, part in parts.items()},
                "columns": columns.named,
                **(asdict(drawn) if drawn else {}),
            },
            images=folder.absolute(),
            notes=(
                *(f"guessed: {line}" for line in columns.guessed),
                str(drawn or f"splits: {', '.join(parts)}"),
            ),
        )

    def _loaded(self) -> Mapping[str, Dataset]:
        try:
            import datasets
        except ImportError:
            raise InputError("`datasets` is not installed: pip install 'polypool[hf]'") from None
        try:
            loaded = datasets.load_dataset(self.name, self.config or None)
        except Exception as error:  # of a network, a file, a name, a data set: it has dozens
            why = str(error).partition("\n")[0]
            raise InputError(
                f"{self.name}: cannot be loaded by `datasets`: {type(error).__name__}: {why:.300}"
            ) from error
        if not loaded:
            raise InputError(f"{self.name}: has no splits")
        return loaded


def _rows(
    part: Dataset, split: str, columns: Columns, folder: Path, *, divided: bool
) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of a split, and write their pictures below `folder`.

    Raises:
        InputError: the column of pictures holds none, or one cannot be written.
    """
    import datasets

    feature = part.features[columns.media]
    if not isinstance(feature, datasets.Image):
        raise InputError(
            f"the column {columns.media!r} holds {feature}, and no pictures; name another with --image-column, or read "
            "a table of paths with `ingest table`"
        )
    named = columns.named
    part = part.select_columns([*named.values()]).cast_column(columns.media, datasets.Image(decode=False))
    for number, row in enumerate(part):
        where = f"{split}, row {number}"
        picture = row[columns.media] or {}
        data = picture.get("bytes")
        if data is None and picture.get("path"):
            data = Path(picture["path"]).read_bytes()
        kind = _kind(data)
        if kind is None:
            yield Skipped(
                where=where, why="a row without a picture that can be read", split=split_called(split)
            )
            continue
        path = f"{split}/{number}.{kind}"
        write_picture(folder / path, data)
        values: dict[str, Any] = {meant: row[name] for meant, name in named.items()}
        values |= {"media": path, "split": "" if divided else split}
        yield from row_of(where, values)


def _kind(data: bytes | None) -> str | None:
    """Return what a picture's file is to end in; None where it is none."""
    try:
        with Image.open(io.BytesIO(data or b"")) as image:
            return {"jpeg": "jpg"}.get((image.format or "").lower(), (image.format or "").lower())
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
