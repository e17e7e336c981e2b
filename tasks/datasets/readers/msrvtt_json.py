"""MSR-VTT's JSON: videos with twenty captions each, in its full splits or in the split 1k-A.

`{"videos": [{"video_id", "split", ...}, ...], "sentences": [{"sen_id", "video_id", "caption"}, ...]}`, published as
`train_val_videodatainfo.json` and `test_videodatainfo.json`, or merged into one file. Splits are `train`, `validate`
(here `val`) and `test`: 6,513, 497 and 2,990 videos in the whole corpus.

1k-A has 1,000 test videos with one caption each, `key,vid_key,video_id,sentence` in `MSRVTT_JSFUSION_test.csv`, and
about 9,000 or 7,000 to train on, listed in `MSRVTT_train.9k.csv` or `.7k.csv` (column `video_id`). It has no validation
split, and the published codes choose their epoch on the test set. Here a random part of the training videos is `val`,
and the test set is scored once.

Source: Xu et al., "MSR-VTT: a large video description dataset for bridging video and language", CVPR 2016; of 1k-A, Yu
et al., "A joint sequence fusion model for video question answering and retrieval", ECCV 2018 (the test set), and Gabeur
et al., "Multi-modal transformer for video retrieval", ECCV 2020 (9k).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotations import DUPLICATE, misfit, read_csv, read_form
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.published_counts import MSRVTT, MSRVTT_1KA
from polypool.tasks.datasets.readers.folders import VideoReader
from polypool.tasks.datasets.splits import choose

_WHAT = 'MSR-VTT\'s JSON, {"videos": [{"video_id", "split", ...}], "sentences": [{"sen_id", "video_id", "caption"}]}'
_SPLITS = {"train": "train", "validate": "val", "test": "test"}
_TRAIN, _TEST = ("video_id",), ("key", "video_id", "sentence")
_UNKNOWN = "a listed video that the annotations do not have"


_Videos = dict[str, tuple[Any, dict[int, str]]]
"""By id, the split of a video in the words of its file, None where it names none, and its captions by their numbers."""


def _read(paths: Sequence[Path]) -> Generator[Skipped, None, _Videos]:
    """Return the videos of one or several files of MSR-VTT's form together.

    Entries of another form, second entries of a video or a sentence, and captions of videos that no file lists are
    yielded.

    Raises:
        InputError: a file is missing, cut short or of another form.
    """
    splits: dict[str, Any] = {}
    sentences: dict[str, dict[int, str]] = defaultdict(dict)
    for path in paths:
        data = read_form(path, what=_WHAT, lists=("videos", "sentences"))
        for number, video in enumerate(data["videos"]):
            where = f"{path.name}, video {number}"
            if why := misfit(video, "a video", video_id=str):
                yield Skipped(where=where, why=why)
            elif (id := video["video_id"]) in splits:
                yield Skipped(where=f"id {id}, {where}", why=DUPLICATE)
            else:
                splits[id] = video.get("split")
        for number, sentence in enumerate(data["sentences"]):
            why = misfit(sentence, "a sentence", sen_id=int, video_id=str, caption=str)
            captions = {} if why else sentences[sentence["video_id"]]
            if not why and sentence["sen_id"] in captions:
                why = "a sen_id that the video has already; the first is kept"
            if why:
                yield Skipped(where=f"{path.name}, sentence {number}", why=why, part=True)
            else:
                captions[sentence["sen_id"]] = sentence["caption"]
    for id in [id for id in sentences if id not in splits]:
        for number in sentences[id]:
            why = "a caption of a video that is not listed"
            yield Skipped(where=f"sentence {number}, of the video {id}", why=why, part=True)
    return {id: (split, sentences[id]) for id, split in splits.items()}


def _item(id: str, captions: dict[int, str], *, split: str) -> Item:
    """Return a video with its captions in the order of their numbers, which are their ids."""
    lines = dict(sorted(captions.items()))
    return Item(id=id, split=split, captions=(*lines.values(),), caption_ids=(*map(str, lines),))


@READERS.register("msrvtt")
@dataclass(frozen=True, kw_only=True)
class MsrVtt(VideoReader):
    """Read MSR-VTT's captions and full splits."""

    json: tuple[Path, ...]
    """train_val_videodatainfo.json and test_videodatainfo.json, or one merged file."""

    def read(self) -> Reading:
        """Return the videos of the files, in their order, each with its captions in the order of `sen_id`."""
        return self.reading(self._items(), *self.json, published=[MSRVTT])

    def _items(self) -> Generator[Item | Skipped]:
        videos = yield from _read(self.json)
        for id, (split, captions) in videos.items():
            if isinstance(split, str) and split in _SPLITS:
                yield _item(id, captions, split=_SPLITS[split])
            else:
                where = f"id {id}, split {json.dumps(split):.60}"
                yield Skipped(where=where, why=f"unknown split, expected {', '.join(_SPLITS)}")


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
    """How many random training videos are held out as val, as 1k-A has no validation split."""
    seed: int = 0
    """Of that choice."""

    def read(self) -> Reading:
        """Return the training videos with all their captions, in the order of their list, then the test videos.

        A training video that the test set has, too, is left to the test set. What is `val` depends on the usable ids
        of the training list and on the seed alone.
        """
        settings = {"val": self.val, "seed": self.seed}
        files = (*self.json, self.train, self.test)
        return self.reading(self._items(), *files, settings=settings, published=MSRVTT_1KA)

    def remarks(self, summary: CorpusSummary) -> Iterator[str]:
        """Say where the validation split comes from."""
        yield (
            f"1k-A has no validation split: val is {summary.splits.get('val', 0):,} videos held out of "
            f"{self.train.name} (seed {self.seed}); nothing is chosen on the test set"
        )

    def _items(self) -> Iterator[Item | Skipped]:
        """Yield the videos.

        Raises:
            InputError: a file is missing, damaged or of another form, or no training videos are left beside `val`.
        """
        listed, torn = yield from _rows(self.train, columns=_TRAIN, split="train")
        rows, _ = yield from _rows(self.test, columns=_TEST, split="test")
        videos = yield from _read(self.json)
        tested = {id for _, (_, id, _) in rows}
        usable = yield from _trainable(listed, videos=videos, tested=tested)
        if not 0 <= self.val < len(usable):
            first = f", first {torn[0].where}: {torn[0].why}" if torn else ""
            raise InputError(
                f"val={self.val:,}: expected 0 or more, and fewer than the {len(usable):,} usable training videos of "
                f"{self.train}; {len(torn):,} of its rows cannot be read{first}"
            )
        held_out = choose(usable, self.val, seed=self.seed)
        for id in usable:
            yield _item(id, videos[id][1], split="val" if id in held_out else "train")
        for where, (key, id, sentence) in rows:
            if id in videos:
                yield Item(id=id, split="test", captions=(sentence,), caption_ids=(key,))
            else:
                why = _UNKNOWN if id else "a row without a video_id"
                yield Skipped(where=f"{where}, id {id}", why=why, split="test")
        for id in (id for id in videos if id not in usable and id not in tested):
            yield Skipped(where=f"id {id}", why="a video that neither list has", wanted=False)


def _trainable(
    listed: Sequence[tuple[str, tuple[str, ...]]], *, videos: _Videos, tested: set[str]
) -> Generator[Skipped, None, dict[str, None]]:
    """Yield what cannot be trained on; return the ids that can be, in order, as the keys of a dictionary."""
    usable: dict[str, None] = {}
    for where, (id,) in listed:
        if not id:
            why = "a row without a video_id"
        elif id in usable:
            why = DUPLICATE
        elif id in tested:
            why = "a training video that the test set has; it is left to the test set"
        elif id not in videos:
            why = _UNKNOWN
        elif not any(caption.strip() for caption in videos[id][1].values()):
            why = "no captions"
        else:
            usable[id] = None
            continue
        yield Skipped(where=f"{where}, id {id}", why=why, split="train")
    return usable


def _rows(
    path: Path, *, columns: Sequence[str], split: str
) -> Generator[Skipped, None, tuple[list[tuple[str, tuple[str, ...]]], list[Skipped]]]:
    """Return the rows of a list that can be read, and those that cannot, which are yielded."""
    rows = list(read_csv(path, columns=columns))
    torn = [replace(row, split=split) for row in rows if isinstance(row, Skipped)]
    yield from torn
    return [row for row in rows if not isinstance(row, Skipped)], torn
