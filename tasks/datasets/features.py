"""Writing published features to a feature store: input files, axes of arrays, ids, and the store."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.files import existing, existing_folder
from polypool.infra.storage import Url, write_bytes
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.findings import USUAL, Findings, Flagged, Skipped, Tolerance, describe
from polypool.infra.store.manifest import Manifest
from polypool.infra.store.writer import ColumnsWriter, with_columns
from polypool.tasks.datasets import FeatureReader, Features, Reader
from polypool.tasks.datasets.annotations import map_array
from polypool.tasks.datasets.corpus import Corpus, QuestionCorpus
from polypool.tasks.datasets.readers.folders import files_below
from polypool.tasks.datasets.splits import SPLITS


def write_features(
    folder: str | Path | Url,
    sets: Iterable[Features | Skipped],
    *,
    source: dict[str, Any],
    dtype: str = "float16",
    tolerance: Tolerance = USUAL,
    training: Iterable[str] = (),
    replace: bool = False,
    stored: Set[str] = frozenset(),
) -> Manifest:
    """Write a store of the sets of a reader; all must be as wide as the first.

    Unfinished work of another `ingest` in the folder is replaced.

    Args:
        folder, source, dtype: as in `StoreWriter`.
        sets: of a reader.
        tolerance: limits on skipped sets and warnings.
        training: ids of the training split, for the statistics in the manifest.
        replace: also replace a complete store in the folder.
        stored: ids of a complete store in the folder, to which the other sets are added; see `stored_ids`.

    Raises:
        InputError: no usable set, too many skipped ones, another store in the folder, or a full disk.
    """
    sets = iter(sets)
    skipped, first = _first(sets)
    if first is None:
        findings = Findings()
        for case in skipped:
            findings.add(case)
        raise InputError(f"{folder}: nothing usable was found; {describe(findings.skipped)}")
    widths = {name: x_NC.shape[1] for name, x_NC in first.columns.items()}
    source, dim = with_columns(source, widths), first.x_ND.shape[1]
    if stored:
        source = _extended(source, folder)
    replaces, extends = "complete" if replace else "unfinished", bool(stored)
    with StoreWriter(
        folder,
        dim=dim,
        dtype=dtype,
        source=source,
        replaces=replaces,
        extends=extends,
    ) as writer:
        with ColumnsWriter(folder, widths, source=source, extends=extends) as columns:
            for entry in chain(skipped, [first], sets):
                if isinstance(entry, Skipped):
                    writer.note(entry)
                elif entry.id in stored:
                    writer.note(Skipped(where=entry.where, why="a set that the store has", wanted=False))
                else:
                    why = columns.offer(writer, entry.id, entry.x_ND, entry.columns, where=entry.where)
                    if why is None and entry.odd:
                        writer.note(Flagged(where=entry.where, why=entry.odd))
            writer.judge(tolerance)
        return writer.close(statistics_of=training, tolerance=tolerance)


def stored_ids(folder: str | Path | Url) -> frozenset[str]:
    """Return the ids of the complete store in a folder; empty without a store."""
    try:
        return frozenset(FeatureStore.open(folder).ids.to_pylist())
    except AbsentError:
        return frozenset()


def _extended(source: dict[str, Any], folder: str | Path | Url) -> dict[str, Any]:
    """Return the source of the store in a folder, with the files of another source added.

    Raises:
        InputError: the settings differ, such as the reader.
    """
    stored, added = Manifest.read(folder).source, json.loads(json.dumps(source))
    names = {*stored, *added} - {"files", "corpus"}
    if other := sorted(name for name in names if stored.get(name) != added.get(name)):
        raise InputError(
            f"{folder}: holds a complete store that was made with another {', '.join(other)}, so that nothing can be "
            "added; name another folder with --out, or write it anew with --replace"
        )
    files = stored.get("files", [])
    return added | {"files": [*files, *(file for file in added.get("files", []) if file not in files)]}


def _first(sets: Iterator[Features | Skipped]) -> tuple[list[Skipped], Features | None]:
    """Take entries up to the first set that is not empty; return the entries before it, as skipped, and the set."""
    skipped: list[Skipped] = []
    for entry in sets:
        if isinstance(entry, Features) and entry.x_ND.size:
            return skipped, entry
        empty = Skipped(where=entry.where, why="an empty set")
        skipped.append(entry if isinstance(entry, Skipped) else empty)
    return skipped, None


def cross_check(
    store: FeatureStore, corpus: Corpus | QuestionCorpus, *, listing: Path | Url
) -> dict[str, list[str]]:
    """Return the ids with `captions only`, or `questions only`, and with `features only`; write them to `listing`."""
    unmatched = {
        f"{corpus.texts} only": _missing(corpus.ids, store.ids),
        "features only": _missing(store.ids, corpus.ids),
    }
    write_bytes(listing, (json.dumps(unmatched, indent=1) + "\n").encode())
    return unmatched


def _missing(ids: Any, others: Any) -> list[str]:
    return ids.filter(pc.invert(pc.is_in(ids, value_set=others))).to_pylist()


PATTERNS = {
    "arrays": r"\.(npy|npz|pth?)$",
    "butd": r"\.tsv(\.\d+)?$",
    "hdf5": r"\.(h5|hdf5?)$",
}
"""Patterns of the file names of each form."""
OTHER_WIDTH = "vectors of another width than {}, which most have"
"""Reason for a skipped set, with the width."""
_WIDTHS = (256, 384, 512, 640, 768, 1024, 1152, 1280, 1408, 1536, 2048, 3072, 4096)  # of backbones
_MOST_REGIONS, _LARGEST_SIDE = 100, 64  # of bottom-up attention, and of maps
_BLOCK = 64 << 20  # bytes of rows that are mapped at a time


def files_of(
    file: Sequence[Path], dir: Path | None, *, pattern: str, what: str, deep: bool = True
) -> list[Path]:
    """Return the files named by `--file`, or the files in the folder `--dir` whose names match a pattern, sorted.

    Args:
        file, dir: exactly one is given.
        pattern: of the names of files in the folder.
        what: description of the files, for messages.
        deep: whether subfolders are searched, too.

    Raises:
        InputError: both or neither given, a missing file or folder, or a folder without such files.
    """
    if bool(file) == (dir is not None):
        raise InputError(f"name {what} by --file FILE [FILE ...], or the folder of them by --dir DIR")
    if dir is None:
        if folder := next((path for path in file if path.is_dir()), None):
            raise InputError(f"{folder}: is a folder; name it by --dir, or {what} by --file")
        return [existing(path, what=what) for path in file]
    folder = existing_folder(dir, what=f"a folder of {what}")
    names = sorted(files_below(folder) if deep else os.listdir(folder))
    names = [name for name in names if not f"/{name}".count("/.")]
    if found := [name for name in names if re.search(pattern, os.path.basename(name))]:
        return [folder / name for name in found]
    others = (form for form, other in PATTERNS.items() if any(re.search(other, name) for name in names))
    hint = "".join(f"; `polypool ingest {form} --dir` reads its files" for form in others)
    if single := next((name for name in names if name.endswith((".pkl", ".pickle", ".csv"))), ""):
        hint += f"; `polypool ingest arrays --file {folder / single}` may read that"
    raise InputError(f"{folder}: nothing usable was found: no {what} among its {len(names):,} files{hint}")


@dataclass(frozen=True, kw_only=True)
class FileReader(FeatureReader):
    """A reader of files, or of a folder of them."""

    file: tuple[Path, ...] = ()
    """One or several files."""
    dir: Path | None = None
    """Instead, a folder of them."""


class Shape(NamedTuple):
    """The shape of the array of one image or video, and the number of its elements if it is known."""

    axes: tuple[int, ...]
    count: int | None = None

    @property
    def squeezed(self) -> tuple[int, ...]:
        """The shape without leading axes of size one; at least two axes stay."""
        axes = self.axes
        while len(axes) > 2 and axes[0] == 1:
            axes = axes[1:]
        return axes

    @property
    def counted(self) -> bool:
        """Whether the number of elements says which of two axes is the width."""
        axes = self.squeezed
        return len(axes) == 2 and self.count in axes and axes[0] != axes[1]

    @property
    def looks_transposed(self) -> bool:
        """Whether it looks like maps `(D, H, W)` or regions `(D, N)`."""
        axes = self.squeezed
        if len(axes) == 2:
            return not self.counted and axes[0] in _WIDTHS and axes[1] <= _MOST_REGIONS
        if len(axes) < 2 or axes[-1] > _LARGEST_SIDE:
            return False
        D, height, width = axes[-3:]
        return width != D and (height == width or max(height, width) < D)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How arrays become sets `(N, D)`.

    The last axis is D and all others are elements, as in `(N, D)`, `(1, N, D)`, a grid `(H, W, D)` and a single vector
    `(D,)`. With `first`, D is the third axis from the end, or the first of two. If the known number of elements is one
    of two axes, D is the other, unless `last` is set.

    Attributes:
        first, last: the axis D as given by the user.
        usual: the most frequent width, the first one in a tie; None without sets.
    """

    first: bool = False
    last: bool = False
    usual: int | None = None

    def _axis(self, shape: Shape) -> int:
        """Return the axis D, counted from the end."""
        axes = shape.squeezed
        if shape.counted and not self.last:
            return -2 if axes[1] == shape.count else -1
        return -min(3, len(axes)) if self.first else -1

    def width(self, shape: Shape) -> int:
        """Return the width of the set of an array."""
        return shape.squeezed[self._axis(shape)]

    def set(self, x: np.ndarray, count: int | None = None) -> np.ndarray:
        """Return an array as a set `(N, D)`; `count` is the number of elements if it is known."""
        shape = Shape(x.shape, count)
        x = np.moveaxis(x.reshape(shape.squeezed), self._axis(shape), -1)
        return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@dataclass(frozen=True, kw_only=True)
class ArrayReader(FileReader):
    """A reader of arrays with axes in any order."""

    channels_first: bool = False
    """Arrays are (D, N), or (D, H, W) as convolutions give them; by default the last axis is the width D."""
    channels_last: bool = False
    """The last axis is the width, even if it looks like a side of a map or a number of regions."""

    def axes(self, shapes: Iterable[Shape], *, where: Any) -> Axes:
        """Return how arrays of these shapes become sets.

        Args:
            shapes: of all arrays, or of a sample.
            where: the file or folder, for the message.

        Raises:
            InputError: the last axis of most of them does not look like D, and no option names it; or both options are
                given.
        """
        if self.channels_first and self.channels_last:
            raise InputError("--channels-first and --channels-last contradict each other; give one")
        shapes = [shape for shape in shapes if shape.axes and math.prod(shape.axes)]
        transposed = [shape.squeezed for shape in shapes if shape.looks_transposed]
        if len(transposed) * 2 > len(shapes) and not (self.channels_first or self.channels_last):
            shape, size, last = transposed[0], math.prod(transposed[0]), transposed[0][-1]
            first = shape[-min(3, len(shape))]
            raise InputError(
                f"{where}: an image or video of shape {shape} would become {size // last:,} vectors of {last}. Give "
                f"--channels-first for {size // first:,} vectors of {first}, or --channels-last if {last} is the width"
            )
        axes = Axes(first=self.channels_first, last=self.channels_last)
        widths = Counter(map(axes.width, shapes))
        return replace(axes, usual=max(widths, key=widths.__getitem__, default=None))


def named_rows(pairs: Iterable[tuple[str, Any]], count: int) -> Generator[Skipped, None, dict[int, str]]:
    """Return the ids of rows 0 to `count` - 1; yield ids without a row, or with the row of another id."""
    names: dict[int, str] = {}
    for id, row in pairs:
        if not isinstance(row, int) or not 0 <= row < count:
            yield Skipped(where=f"id {id}", why=f"an id whose row is not one of 0 to {count - 1}")
        elif row in names:
            yield Skipped(where=f"id {id}", why="an id whose row has another id already")
        else:
            names[row] = id
    return names


def mapped_rows(path: Path, *, what: str, each: int = 1) -> Iterator[np.ndarray]:
    """Yield every `each`-th row of a `.npy` file.

    Each block is mapped anew, because pages that were read count as used memory while they stay mapped.
    """
    rows = map_array(path, what=what)
    step = each * max(1, _BLOCK // max(1, rows[:each].nbytes))
    for start in range(0, len(rows), step):
        yield from map_array(path, what=what)[start : start + step : each]


_DECIDE = 1000  # ids after which a rule is chosen that fits at least half of them
_ENDING = re.compile(r"(\.(?=\d*[A-Za-z])\w{1,5})+$")
_NUMBER = re.compile(r"0*(\d+)$")
_AMBIGUOUS = ""


def _base(id: str) -> str:
    return id.rpartition("/")[2]


def _bare(id: str) -> str:
    return _ENDING.sub("", id) or id


def _number(id: str) -> str | None:
    found = _NUMBER.search(_bare(id))
    return found.group(1) if found else None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule that matches ids of features with the images or videos of a corpus.

    Attributes:
        name: for messages.
        key: returns the part of an id to compare, or None.
        of_path: whether to compare the path of the corpus's file instead of its id.
    """

    name: str
    key: Callable[[str], str | None]
    of_path: bool = False

    def ids(self, named: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Return the ids of a corpus by their keys, from pairs of id and path; `_AMBIGUOUS` for a shared key."""
        found: dict[str, str] = {}
        for id, path in named:
            key = self.key(path if self.of_path else id)
            if key and found.setdefault(key, id) != id:
                found[key] = _AMBIGUOUS
        return found


_KEYS: dict[str, Callable[[str], str | None]] = {
    "equal": str,
    "equal but for endings such as .jpg": _bare,
    "equal base names": _base,
    "equal base names but for endings such as .jpg": lambda id: _bare(_base(id)),
    "equal numbers at the end": _number,
}
RULES = [
    Rule(name=f"{name} ({'file' if of_path else 'id'})", key=key, of_path=of_path)
    for name, key in _KEYS.items()
    for of_path in (False, True)
]
"""In the order in which they are preferred."""


class IdMatch:
    """Renames features to the ids of a corpus, by the rule that matches most of them.

    Args:
        reader: of the features; a first part, or all if few match, is read to choose the rule.
        corpus: with the ids.
        min_matched: share of the images or videos that must have features, in train, val and test, and in any other
            split with features.
        stored: ids of features that are stored already.

    Raises:
        InputError: no rule matches any id.
    """

    def __init__(
        self,
        reader: Reader,
        corpus: Corpus | QuestionCorpus,
        *,
        min_matched: float,
        stored: Set[str] = frozenset(),
    ) -> None:
        self._corpus, self._min_matched, self._stored = corpus, min_matched, stored
        named = [(id, path) for split in corpus.splits for id, path, _ in corpus.paths(split)]
        ids = [rule.ids(named) for rule in RULES]
        hits, seen = Counter[int](), list[str]()
        for entry in reader.read().rows:
            if not isinstance(entry, Features):
                continue
            seen.append(entry.id)
            hits.update(n for n, rule in enumerate(RULES) if ids[n].get(rule.key(entry.id) or ""))
            if len(seen) >= _DECIDE and max(hits.values(), default=0) * 2 >= len(seen):
                break
        if seen and not hits:
            raise InputError(
                f"{corpus.folder}: no features of its images or videos: their ids are {_few(corpus.ids.to_pylist())}, "
                f"..., the ids of the features {_few(seen)}, ...: neither ids nor paths match, nor base names, with or "
                "without endings, nor numbers at their ends. Name the column with the features' ids by `ingest table "
                "--id-column`, or rename the features"
            )
        best = max(range(len(RULES)), key=lambda n: hits[n])  # the first of those that fit as many
        self.rule, self._ids = RULES[best], ids[best]
        self._named: dict[str, str] = {}  # ids of features by ids of the corpus

    def renamed(self, sets: Iterable[Features | Skipped]) -> Iterator[Features | Skipped]:
        """Yield sets under the ids of the corpus; unmatched sets keep their ids.

        Raises:
            InputError: two sets for one image or video, an ambiguous id, or, at the end, too few matches.
        """
        for entry in sets:
            key = self.rule.key(entry.id) if isinstance(entry, Features) else None
            if not isinstance(entry, Features) or key is None or (id := self._ids.get(key)) is None:
                yield entry
                continue
            other = self._named.setdefault(id, entry.id)
            if id == _AMBIGUOUS or other != entry.id:
                twins = (
                    "is of several images or videos"
                    if id == _AMBIGUOUS
                    else f"and {other!r} are of the same one"
                )
                raise InputError(
                    f"{entry.where}: by {self.rule.name}, {entry.id!r} {twins}; give each image or video a unique id, "
                    "the same in corpus and features (`ingest table --id-column`)"
                )
            yield replace(entry, id=id)
        self._check()

    def _check(self) -> None:
        """Raise InputError if too few images or videos have features."""
        shares, lacking = dict[str, float](), list[str]()
        for split in self._corpus.splits:
            ids = dict.fromkeys(id for id, *_ in self._corpus.paths(split))
            without = [id for id in ids if id not in self._named and id not in self._stored]
            if split in SPLITS or len(without) < len(ids):
                shares[split] = 1 - len(without) / len(ids)
                lacking += without
        if any(share < self._min_matched for share in shares.values()):
            found = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
            accepted = math.floor(100 * min(shares.values())) / 100
            raise InputError(
                f"{self._corpus.folder}: {self} ({found}); none of {_few(lacking)}. Ingest features of all; "
                f"or accept these with --min-matched {accepted:g}, and train with --data.missing skip, which leaves "
                "out items without features"
            )

    def __str__(self) -> str:
        example = next(((theirs, own) for own, theirs in self._named.items() if own != theirs), None)
        shown = f", such as {example[0]!r} for {example[1]!r}" if example else ""
        return (
            f"features of {len(self._named):,} of {len(self._corpus.ids):,} images or videos, found by "
            f"{self.rule.name}{shown}"
        )


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3])
