"""What Hugging Face's `datasets` reads: data sets on the hub or in a folder, and tar shards of WebDataset.

Pictures become files, of which no name leaves the folder of images.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.files import existing, identity, make_folder
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.readers.folders import write_picture
from polypool.tasks.datasets.readers.own import ColumnReader, Columns, DividedReader, Row, grouped, row_of
from polypool.tasks.datasets.splits import split_called

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_PICTURES = ("jpg", "jpeg", "png", "webp")
_TEXTS = ("txt", "caption", "text", "json")


@READERS.register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(DividedReader):
    """Read tar shards of WebDataset: `1.jpg` with `1.txt`, or with a caption in `1.json`; pictures become files."""

    shards: tuple[Path, ...]
    """The tar files, compressed or not."""
    images: Path
    """Folder that the pictures are written to, those of each shard in a folder of its own."""

    def read(self) -> Reading:
        """Return the samples, in the order of the shards; their pictures are written while they are read."""
        stems = Counter(path.stem for path in self.shards)
        if twice := [stem for stem, count in stems.items() if count > 1]:
            raise InputError(f"several shards are called {', '.join(sorted(twice))}; rename all but one")
        random, folder = self.random, make_folder(self.images)
        return Reading(
            rows=grouped((row for shard in self.shards for row in _samples(shard, folder)), splits=random),
            source={"files": identity(*self.shards), **asdict(random)},
            images=folder.absolute(),
            notes=(str(random),),
        )


def _samples(shard: Path, folder: Path) -> Iterator[Row | Skipped | Flagged]:
    """Yield the samples of a shard, and write their pictures below `folder`.

    Raises:
        InputError: it is no tar file, is cut short, or has no pictures or no texts.
    """
    file = str(existing(shard, what="a tar file of WebDataset").absolute())
    part: IterableDataset = _loaded(
        str(shard), "webdataset", data_files=[file], split="train", streaming=True
    )
    kinds = part.column_names or []
    picture, text = (next((kind for kind in usual if kind in kinds), "") for usual in (_PICTURES, _TEXTS))
    if not (picture and text):
        raise InputError(
            f"{shard}: its samples have {', '.join(kinds)}; expected one of {', '.join(_PICTURES)}, and one of "
            f"{', '.join(_TEXTS)}"
        )
    samples, number = iter(_files(part, picture)), 0
    while True:
        try:
            sample = next(samples, None)
        except Exception as error:  # as in `_loaded`
            raise InputError(f"{shard}: cannot be read as a tar file: {error}; fetch it again") from error
        if sample is None:
            return
        key, number = sample["__key__"], number + 1
        where, path = f"{shard.name}, {key}", os.path.join(shard.stem, f"{key}.{picture}")
        if os.path.isabs(key) or os.pardir in Path(key).parts:
            yield Skipped(where=where, why="a name that leaves the folder of images")
        elif not (data := _bytes(sample[picture])) or not sample[text]:
            yield Skipped(where=where, why="a sample without a picture or a text")
        else:
            write_picture(folder / path, data)
            yield from row_of(where, {"media": path, "text": sample[text]}, number=number)


def _files(part: Any, column: str) -> Any:
    """Return a part whose pictures are left as the bytes of their files."""
    import datasets

    return part.cast_column(column, datasets.Image(decode=False))


def _bytes(picture: Mapping[str, Any] | None) -> bytes:
    """Return the bytes of a picture's file; none where there are none."""
    picture = picture or {}
    if (data := picture.get("bytes")) is None and picture.get("path"):
        data = Path(picture["path"]).read_bytes()
    return data or b""


def _loaded(called: str, *args: Any, **options: Any) -> Any:
    """Return what `datasets.load_dataset` does, whose errors become one."""
    with needed("hf"):
        import datasets
    try:
        return datasets.load_dataset(*args, **options)
    except Exception as error:  # of a network, a file, a name, a data set: it has dozens
        why = str(error).partition("\n")[0]
        raise InputError(
            f"{called}: cannot be loaded by `datasets`: {type(error).__name__}: {why:.300}"
        ) from error


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
        loaded = _loaded(self.name, self.name, self.config or None)
        parts = {str(split): part for split, part in loaded.items()}
        if not parts:
            raise InputError(f"{self.name}: has no splits")
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
        part = _files(part, media)
    for number, row in enumerate(part):
        where = f"{split}, row {number}"
        values: dict[str, Any] = {meant: row[name] for meant, name in named.items()}
        values["split"] = "" if divided else split
        id = values.get("id")
        if id is not None and id in path_of:
            yield from row_of(where, values | {"media": path_of[id]}, number=first + number)
            continue
        data = _bytes(row[media])
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
