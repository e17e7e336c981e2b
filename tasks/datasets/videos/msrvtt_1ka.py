"""MSR-VTT's split 1k-A: 1,000 test videos with one caption each, and about 9,000 or 7,000 to train on.

`MSRVTT_data.json` has all videos and captions in the form of the official files; `MSRVTT_train.9k.csv` or `.7k.csv`
lists the training videos (column `video_id`); `MSRVTT_JSFUSION_test.csv` has the test set,
`key,vid_key,video_id,sentence`.

1k-A has no validation split, and the published codes choose their epoch on the test set. Here a part of the training
videos, drawn by lot, is `val`, and the test set is scored once.

Source: Yu et al., "A joint sequence fusion model for video question answering and retrieval", ECCV 2018 (the test set);
Gabeur et al., "Multi-modal transformer for video retrieval", ECCV 2020 (9k).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infra.errors import InputError
from infra.files import identity
from infra.registry import READERS
from infra.store.findings import Skipped
from tasks.datasets.corpus import CorpusSummary, Item
from tasks.datasets.csv_rows import read_csv
from tasks.datasets.draws import draw
from tasks.datasets.published import MSRVTT_1KA
from tasks.datasets.reader import Reading
from tasks.datasets.videos.media import VideoReader
from tasks.datasets.videos.msrvtt import Annotations, read_annotations

_TRAIN, _TEST = ("video_id",), ("key", "video_id", "sentence")


@READERS.register("msrvtt-1ka")
@dataclass(frozen=True, kw_only=True)
class MsrVtt1kA(VideoReader):
    """Read MSR-VTT's split 1k-A; some training videos are held out to choose the epoch on."""

    json: tuple[Path, ...]
    """MSRVTT_data.json, or the official pair of files."""
    train: Path
    """MSRVTT_train.9k.csv or MSRVTT_train.7k.csv."""
    test: Path
    """MSRVTT_JSFUSION_test.csv."""
    val: int = 500
    """How many training videos are held out as val, as 1k-A has no validation split."""
    seed: int = 0
    """Of the draw of these."""

    def read(self) -> Reading:
        """Return the videos of both lists; see `read_msrvtt_1ka`."""
        return self.reading(
            read_msrvtt_1ka(*self.json, train=self.train, test=self.test, val=self.val, seed=self.seed),
            source={
                "files": identity(*self.json, self.train, self.test),
                "val": self.val,
                "seed": self.seed,
            },
            published=MSRVTT_1KA,
        )

    def remarks(self, summary: CorpusSummary) -> Iterator[str]:
        """Say where the validation split comes from."""
        yield (
            f"1k-A has no validation split: val is {summary.splits.get('val', 0):,} videos held out of "
            f"{self.train.name} (seed {self.seed}); nothing is chosen on the test set"
        )


def read_msrvtt_1ka(
    *paths: str | Path, train: str | Path, test: str | Path, val: int = 500, seed: int = 0
) -> Iterator[Item | Skipped]:
    """Yield the training videos with all their captions, in the order of their list, then the test videos.

    A training video that the test set has, too, is left to the test set. What is `val` depends on the usable ids of
    the training list and on the seed alone.

    Args:
        paths: `MSRVTT_data.json`, or the official pair of files.
        train: `MSRVTT_train.9k.csv` or `MSRVTT_train.7k.csv`.
        test: `MSRVTT_JSFUSION_test.csv`.
        val: how many of the training videos are held out as `val`.
        seed: of the draw.

    Raises:
        InputError: a file is missing, damaged or of another form, or no training videos are left beside `val`.
    """
    listed, torn = _rows(train, columns=_TRAIN, split="train")
    rows, torn_tests = _rows(test, columns=_TEST, split="test")
    read = read_annotations(paths)
    yield from (*torn, *torn_tests, *read.skipped)
    tested = {id for _, (_, id, _) in rows}
    usable = yield from _trainable(((where, id) for where, (id,) in listed), read=read, tested=tested)
    if not 0 <= val < len(usable):
        first = (
            f"; {len(torn):,} of its rows cannot be read, first {torn[0].where}: {torn[0].why}"
            if torn
            else ""
        )
        raise InputError(
            f"val={val:,}: expected 0 or more, and fewer than the {len(usable):,} usable training videos of "
            f"{train}{first}"
        )
    held_out = draw(usable, val, seed=seed)
    for id in usable:
        yield read.item(id, split="val" if id in held_out else "train")
    for where, (key, id, sentence) in rows:
        if id in read.splits:
            yield Item(id=id, split="test", captions=(sentence,), caption_ids=(key,))
        else:
            why = "a listed video that the annotations do not have" if id else "a row without a video_id"
            yield Skipped(where=f"{where}, id {id}", why=why, split="test")
    for id in (id for id in read.splits if id not in usable and id not in tested):
        yield Skipped(where=f"id {id}", why="a video that neither list has", wanted=False)


def _trainable(
    listed: Iterable[tuple[str, str]], *, read: Annotations, tested: set[str]
) -> Generator[Skipped, None, dict[str, None]]:
    """Yield what cannot be trained on; return the ids that can be, in order, as the keys of a dictionary."""
    usable: dict[str, None] = {}
    for where, id in listed:
        if not id:
            why = "a row without a video_id"
        elif id in usable:
            why = "duplicate id; the first is kept"
        elif id in tested:
            why = "a training video that the test set has; it is left to the test set"
        elif id not in read.splits:
            why = "a listed video that the annotations do not have"
        elif not any(caption.strip() for _, caption in read.sentences.get(id, ())):
            why = "no captions"
        else:
            usable[id] = None
            continue
        yield Skipped(where=f"{where}, id {id}", why=why, split="train")
    return usable


def _rows(
    path: str | Path, *, columns: Sequence[str], split: str
) -> tuple[list[tuple[str, tuple[str, ...]]], list[Skipped]]:
    """Return the rows of a list that can be read, and those that cannot."""
    rows = list(read_csv(path, columns=columns))
    torn = [replace(row, split=split) for row in rows if isinstance(row, Skipped)]
    return [row for row in rows if not isinstance(row, Skipped)], torn
