"""Data sets in the form of Hugging Face's `datasets`: on its hub, or in a local folder; pictures become files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.files import make_folder
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.own.rows import ColumnReader, Columns, Row, grouped, row_of
from polypool.tasks.datasets.readers.folders import write_picture
from polypool.tasks.datasets.splits import split_called

if TYPE_CHECKING:
    from datasets import Dataset


@READERS.register("hf")
@dataclass(frozen=True, kw_only=True)
class HuggingFace(ColumnReader):
    """Read a data set that `datasets` loads: by its name on the hub, or a local folder of Parquet, CSV or pictures.

    Its code is never run. Splits are those it has; one of `train` alone is divided at random.
    """

    name: str
    """Its name on the hub, such as nlphuji/flickr30k, or a local folder."""
    images: Path
    """Folder that its pictures are written to."""
    config: str = ""
    """Which of several in one."""
    pictures_inside = True

    def read(self) -> Reading:
        """Return the rows of all splits; their pictures are written while they are read."""
        parts = self._loaded()
        columns = self.columns(next(iter(parts.values())).column_names, divided=True)
        divided = bool(self.split) or {split_called(split) for split in parts} == {"train"}
        random = self.random if divided else None
        folder = make_folder(self.images)
        firsts = accumulate(map(len, parts.values()), initial=1)
        rows = (
            row
            for (split, part), first in zip(parts.items(), firsts, strict=False)  # and the end of the last
            for row in _rows(part, split, columns, folder, divided=divided, first=first)
        )
        return Reading(
            of="questions" if columns.questions else "captions",
            rows=grouped(rows, splits=self.random, own_splits=not divided, questions=columns.questions),
            source={
                "name": self.name,
                "config": self.config,
                "fingerprints": {split: part._fingerprint for split, part in parts.items()},
                "columns": columns.named,
                **(asdict(random) if random else {}),
            },
            images=folder.absolute(),
            notes=(*columns.guessed, str(random or f"splits: {', '.join(parts)}")),
        )

    def _loaded(self) -> Mapping[str, Dataset]:
        with needed("hf"):
            import datasets
        try:
            loaded = datasets.load_dataset(self.name, self.config or None)
        except Exception as error:  # of a network, a file, a name, a data set: it has dozens
            why = str(error).partition("\n")[0]
            raise InputError(
                f"{self.name}: cannot be loaded by `datasets`: {type(error).__name__}: {why:.300}"
            ) from error
        if not loaded:
            raise InputError(f"{self.name}: has no splits")
        return {str(split): part for split, part in loaded.items()}


def _rows(
    part: Dataset, split: str, columns: Columns, folder: Path, *, divided: bool, first: int
) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of a split, and write their pictures below `folder`, those of one id once.

    Raises:
        InputError: the column of pictures holds none, or one cannot be written.
    """
    import datasets

    named, media = columns.named, columns.named["media"]
    kind, path_of = part.features[media], dict[Any, str]()
    if not isinstance(kind, datasets.Image) and not (isinstance(kind, dict) and "bytes" in kind):
        raise InputError(
            f"the column {media!r} holds {part.features[media]}, and no pictures; name another with --image-column, or "
            "read a table of paths with `ingest table`"
        )
    part = part.select_columns([*dict.fromkeys(named.values())])
    if isinstance(kind, datasets.Image):
        part = part.cast_column(media, datasets.Image(decode=False))
    for number, row in enumerate(part):
        where, picture = f"{split}, row {number}", row[media] or {}
        values: dict[str, Any] = {meant: row[name] for meant, name in named.items()}
        values["split"] = "" if divided else split
        id = values.get("id")
        if id is not None and id in path_of:
            yield from row_of(where, values | {"media": path_of[id]}, number=first + number)
            continue
        data = picture.get("bytes")
        if data is None:
            data = Path(picture["path"]).read_bytes() if picture.get("path") else b""
        if not (kind := _kind(data)):
            why = "a row without a picture that can be read"
            yield Skipped(where=where, why=why, split=split_called(split))
            continue
        path = f"{split}/{number}.{kind}"
        write_picture(folder / path, data)
        if id is not None:
            path_of[id] = path
        yield from row_of(where, values | {"media": path}, number=first + number)


def _kind(data: bytes) -> str:
    """Return the suffix of a picture's file; empty where it is none."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return {"jpeg": "jpg"}.get((image.format or "").lower(), (image.format or "").lower())
    except (OSError, ValueError, Image.DecompressionBombError):
        return ""
