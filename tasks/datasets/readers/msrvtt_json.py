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
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotation_files import misfit, read_csv, read_form
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.published_counts import MSRVTT, MSRVTT_1KA
from polypool.tasks.datasets.readers.folders import VideoReader
from polypool.tasks.datasets.splits import choose

_WHAT = 'MSR-VTT\'s JSON, {"videos": [{"video_id", "split", ...}], "sentences": [{"sen_id", "video_id", "caption"}]}'
_SPLITS = {"train": "train", "validate": "val", "test": "test"}
_TRAIN, _TEST = ("video_id",), ("key", "video_id", "sentence")
_UNKNOWN = "a listed video that the annotations do not have"


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """Videos and captions of one or several files together.

    Attributes:
        splits: of each video, in the words of the file; None where it names none.
        sentences: captions of each video by their numbers.
        skipped: entries of the files that cannot be used.
    """

    splits: dict[str, Any] = field(default_factory=dict)
    sentences: dict[str, dict[int, str]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Annotations:
        """Read files of MSR-VTT's form.

        Entries of another form, second entries of a video or a sentence, and captions of videos that no file lists
        are skipped.

        Raises:
            InputError: a file is missing, cut short or of another form.
        """
        read = cls()
        for path in paths:
            data = read_form(path, what=_WHAT, lists=("videos", "sentences"))
            for number, video in enumerate(data["videos"]):
                read._add_video(video, where=f"{path.name}, video {number}")
            for number, sentence in enumerate(data["sentences"]):
                read._add_sentence(sentence, where=f"{path.name}, sentence {number}")
        for id in [id for id in read.sentences if id not in read.splits]:
            for number in read.sentences.pop(id):
                where = f"sentence {number}, of the video {id}"
                why = "a caption of a video that is not listed"
                read.skipped.append(Skipped(where=where, why=why, part=True))
        return read

    def _add_video(self, video: Any, *, where: str) -> None:
        if why := misfit(video, "a video", video_id=str):
            self.skipped.append(Skipped(where=where, why=why))
        elif (id := video["video_id"]) in self.splits:
            self.skipped.append(Skipped(where=f"id {id}, {where}", why="duplicate id; the first is kept"))
        else:
            self.splits[id] = video.get("split")

    def _add_sentence(self, sentence: Any, *, where: str) -> None:
        why = misfit(sentence, "a sentence", sen_id=int, video_id=str, caption=str)
        captions = {} if why else self.sentences.setdefault(sentence["video_id"], {})
        if not why and sentence["sen_id"] in captions:
            why = "a sen_id that the video has already; the first is kept"
        if why:
            self.skipped.append(Skipped(where=where, why=why, part=True))
        else:
            captions[sentence["sen_id"]] = sentence["caption"]

    def item(self, id: str, *, split: str) -> Item:
        """Return a video with its captions in the order of their numbers, which are their ids."""
        lines = sorted(self.sentences.get(id, {}).items())
        return Item(
            id=id,
            split=split,
            captions=tuple(caption for _, caption in lines),
            caption_ids=tuple(str(number) for number, _ in lines),
        )


@READERS.register("msrvtt")
@dataclass(frozen=True, kw_only=True)
class MsrVtt(VideoReader):
    """Read MSR-VTT's captions and full splits."""

    json: tuple[Path, ...]
    """train_val_videodatainfo.json and test_videodatainfo.json, or one merged file."""

    def read(self) -> Reading:
        """Return the videos of the files, in their order, each with its captions in the order of `sen_id`."""
        return self.reading(self._items(), *self.json, published=[MSRVTT])

    def _items(self) -> Iterator[Item | Skipped]:
        read = Annotations.read(self.json)
        yield from read.skipped
        for id, split in read.splits.items():
            if isinstance(split, str) and split in _SPLITS:
                yield read.item(id, split=_SPLITS[split])
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
        listed, torn = _rows(self.train, columns=_TRAIN, split="train")
        rows, torn_tests = _rows(self.test, columns=_TEST, split="test")
        read = Annotations.read(self.json)
        yield from (*torn, *torn_tests, *read.skipped)
        tested = {id for _, (_, id, _) in rows}
        usable = yield from _trainable(listed, read=read, tested=tested)
        if not 0 <= self.val < len(usable):
            first = f", first {torn[0].where}: {torn[0].why}" if torn else ""
            raise InputError(
                f"val={self.val:,}: expected 0 or more, and fewer than the {len(usable):,} usable training videos of "
                f"{self.train}; {len(torn):,} of its rows cannot be read{first}"
            )
        held_out = choose(usable, self.val, seed=self.seed)
        for id in usable:
            yield read.item(id, split="val" if id in held_out else "train")
        for where, (key, id, sentence) in rows:
            if id in read.splits:
                yield Item(id=id, split="test", captions=(sentence,), caption_ids=(key,))
            else:
                why = _UNKNOWN if id else "a row without a video_id"
                yield Skipped(where=f"{where}, id {id}", why=why, split="test")
        for id in (id for id in read.splits if id not in usable and id not in tested):
            yield Skipped(where=f"id {id}", why="a video that neither list has", wanted=False)


def _trainable(
    listed: Sequence[tuple[str, tuple[str, ...]]], *, read: Annotations, tested: set[str]
) -> Generator[Skipped, None, dict[str, None]]:
    """Yield what cannot be trained on; return the ids that can be, in order, as the keys of a dictionary."""
    usable: dict[str, None] = {}
    for where, (id,) in listed:
        if not id:
            why = "a row without a video_id"
        elif id in usable:
            why = "duplicate id; the first is kept"
        elif id in tested:
            why = "a training video that the test set has; it is left to the test set"
        elif id not in read.splits:
            why = _UNKNOWN
        elif not any(caption.strip() for caption in read.sentences.get(id, {}).values()):
            why = "no captions"
        else:
            usable[id] = None
            continue
        yield Skipped(where=f"{where}, id {id}", why=why, split="train")
    return usable


def _rows(
    path: Path, *, columns: Sequence[str], split: str
) -> tuple[list[tuple[str, tuple[str, ...]]], list[Skipped]]:
    """Return the rows of a list that can be read, and those that cannot."""
    rows = list(read_csv(path, columns=columns))
    torn = [replace(row, split=split) for row in rows if isinstance(row, Skipped)]
    return [row for row in rows if not isinstance(row, Skipped)], torn
