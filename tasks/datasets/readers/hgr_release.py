"""HGR's release: captions, video names of each split, and features, of MSR-VTT, VATEX, TGIF and others.

`ref_captions.json` is `{video: [sentence, ...]}`, sentences in lower case and split into words. `public_split/` has
the names of each split in `{trn,val,tst}_names.npy`. Features are `ordered_feature/SA/<kind>/{trn,val,tst}_ft.hdf5`,
a data set `(frames, D)` for each video, or `ordered_feature/MP/<kind>/{trn,val,tst}_ft.npy`, `(videos, D)` in the
order of the names, the means over the frames. HDF5 keys have `_` for the `/` of names, and so have the ids of corpus
and store.

Source: Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning", CVPR 2020.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import existing_folder, files_like, identity, read_json
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Features, Reading
from polypool.tasks.datasets.annotations import DUPLICATE, FORM, map_array, read_ids
from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets.features import Axes, FileReader, files_of
from polypool.tasks.datasets.readers.folders import VideoReader
from polypool.tasks.datasets.readers.hdf5 import data_sets
from polypool.tasks.datasets.splits import MSRVTT, VATEX

_CAPTIONS = "HGR's ref_captions.json, {video: [sentence, ...]}"
_FEATURES = (
    "{trn,val,tst}_ft.hdf5 of ordered_feature/SA/<kind>, or {trn,val,tst}_ft.npy of ordered_feature/MP/<kind>"
)
_PATTERN = r"^(trn|val|tst)_ft\.(hdf5|npy)$"
_SPLITS = {"trn": "train", "val": "val", "tst": "test"}


@READERS.register("hgr")
@dataclass(frozen=True, kw_only=True)
class Hgr(VideoReader):
    """Read the captions and splits of HGR's release."""

    captions: Path
    """annotation/RET/ref_captions.json."""
    splits: Path
    """public_split, with trn_names.npy, val_names.npy and tst_names.npy."""

    def read(self) -> Reading:
        """Return the videos of the lists, train, val, test, each with its sentences."""
        files = (self.captions, *files_like(self.splits, "???_names.npy"))
        return self.reading(self._items(), *files, published=[MSRVTT, VATEX])

    def _items(self) -> Iterator[Item | Skipped]:
        names = yield from _names(self.splits)
        sentences = yield from _sentences(self.captions)
        for split, rows in names.items():
            for id in rows:
                yield Item(id=id, split=_SPLITS[split], captions=sentences.pop(id, ()))
        for id in sentences:
            where = f"{self.captions.name}, {id}"
            yield Skipped(where=where, why="captions of a video that no list has", wanted=False)


@READERS.register("hgr-features")
@dataclass(frozen=True, kw_only=True)
class HgrFeatures(FileReader):
    """Read HGR's ordered features, SA or MP, into a store."""

    file: tuple[Path, ...] = ()
    """trn_ft.hdf5, ... of ordered_feature/SA/<kind>, or trn_ft.npy, ... of ordered_feature/MP/<kind>."""
    dir: Path | None = None
    """Instead, the folder that they are in."""
    splits: Path
    """public_split, with trn_names.npy, val_names.npy and tst_names.npy."""

    def read(self) -> Reading:
        """Return the sets of the videos of the lists: `(frames, D)` of SA, or `(1, D)` of MP.

        A split without a file is skipped; an array must have a row for each name.
        """
        files = files_of(self.file, self.dir, pattern=_PATTERN, what=_FEATURES, deep=False)
        kind = "/".join(files[0].parent.parts[-2:])
        return Reading(rows=self._sets(files), source={"kind": kind, "files": identity(*files)})

    def _sets(self, files: list[Path]) -> Iterator[Features | Skipped]:
        names = yield from _names(self.splits)
        paths = {path.stem[:3]: path for path in reversed(files)}  # .hdf5 before .npy
        if odd := {*paths} - {*_SPLITS}:
            raise InputError(f"{paths[min(odd)]}: expected {_FEATURES}")
        for split in _SPLITS:
            if (path := paths.get(split)) is None:
                yield Skipped(where=f"{split}_ft", why="no such .hdf5 or .npy file", wanted=False)
            elif path.suffix == ".npy":
                yield from _means(path, names[split], rows=len(read_ids(_list(self.splits, split))))
            else:
                yield from _frames(path, names[split])


def _list(splits: Path, split: str) -> Path:
    return splits / f"{split}_names.npy"


def _id(name: str) -> str:
    return name.replace("/", "_")


def _names(splits: Path) -> Generator[Skipped, None, dict[str, dict[str, int]]]:
    """Return the videos of each list by id, with their rows in the arrays of the split; yield duplicate names."""
    existing_folder(splits, what="public_split, with trn_names.npy, val_names.npy and tst_names.npy")
    lists = {split: read_ids(_list(splits, split), what=f"the names of {split}") for split in _SPLITS}
    rows, seen = {split: dict[str, int]() for split in lists}, set[str]()
    for split, names in lists.items():
        for row, name in enumerate(names):
            if (id := _id(name)) in seen:
                yield Skipped(where=f"{split}_names.npy, {name}", why=DUPLICATE, split=_SPLITS[split])
            else:
                rows[split][id] = row
                seen.add(id)
    return rows


def _sentences(path: Path) -> Generator[Skipped, None, dict[str, tuple[str, ...]]]:
    """Return the captions of each id, and yield invalid ones."""
    data = read_json(path, what=_CAPTIONS)
    if not isinstance(data, dict):
        raise InputError(f"{path}: {FORM}: {_CAPTIONS}")
    captions: dict[str, tuple[str, ...]] = {}
    for name, sentences in data.items():
        where, id = f"{path.name}, {name}", _id(name)
        if id in captions:
            yield Skipped(where=where, why=DUPLICATE)
        elif not isinstance(sentences, list):
            yield Skipped(where=where, why="captions that are not a list")
        else:
            captions[id] = tuple(sentences)
    return captions


def _frames(path: Path, names: dict[str, int]) -> Iterator[Features | Skipped]:
    """Yield the frames of each video of an HDF5 file."""
    with data_sets(path, what="the frames of a split's videos") as data:
        key_of = {_id(key): key for key in data}
        for id in Progress(names, desc=path.name, unit="video"):
            where, key = f"{path.name}, {id}", key_of.pop(id, "")
            if not key:
                yield Skipped(where=where, why="a listed video that has no features")
            elif not data[key].shape:
                yield Skipped(where=where, why="not a data set (frames, D)")
            else:
                yield Features(id=id, x_ND=Axes().set(data[key][()]), where=where)
        for key in key_of.values():
            why = "features of a video that the list does not have"
            yield Skipped(where=f"{path.name}, {key}", why=why, wanted=False)


def _means(path: Path, names: dict[str, int], *, rows: int) -> Iterator[Features | Skipped]:
    """Yield the row of each video in an array.

    Raises:
        InputError: not `rows` rows, the number of names in the list.
    """
    x_MD = map_array(path, what="HGR's features of a split")
    if x_MD.ndim != 2 or len(x_MD) != rows:
        raise InputError(
            f"{path}: shape {x_MD.shape}, expected ({rows:,}, D): a row for each name of the split's list"
        )
    for id, row in Progress(names.items(), desc=path.name, unit="video"):
        yield Features(id=id, x_ND=x_MD[row, None], where=f"{path.name}, row {row}")
