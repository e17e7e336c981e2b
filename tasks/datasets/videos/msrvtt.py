"""MSR-VTT's JSON: videos with twenty captions each, and its full splits.

`{"videos": [{"video_id", "split", ...}, ...], "sentences": [{"sen_id", "video_id", "caption"}, ...]}`, published as
`train_val_videodatainfo.json` and `test_videodatainfo.json`, or merged into one file. Splits are `train`, `validate`
(here `val`) and `test`: 6,513, 497 and 2,990 videos in the whole corpus.

Source: Xu et al., "MSR-VTT: a large video description dataset for bridging video and language", CVPR 2016.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import identity, read_json
from infra.registry import READERS
from infra.store.findings import Skipped
from tasks.datasets.corpus import Item
from tasks.datasets.published import MSRVTT
from tasks.datasets.reader import Reading
from tasks.datasets.videos.media import VideoReader

_WHAT = 'MSR-VTT\'s JSON, {"videos": [{"video_id", "split", ...}], "sentences": [{"sen_id", "video_id", "caption"}]}'
_SPLITS = {"train": "train", "validate": "val", "test": "test"}


@READERS.register("msrvtt")
@dataclass(frozen=True, kw_only=True)
class MsrVtt(VideoReader):
    """Read MSR-VTT's captions and full splits."""

    json: tuple[Path, ...]
    """train_val_videodatainfo.json and test_videodatainfo.json, or one merged file."""

    def read(self) -> Reading:
        """Return the videos of the files; see `read_msrvtt`."""
        return self.reading(
            read_msrvtt(*self.json), source={"files": identity(*self.json)}, published=[MSRVTT]
        )


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """What the files say, before anything is made of it.

    Args:
        splits: of each video, in the words of the file; None where it names none.
        sentences: of each video, as numbers and captions.
        skipped: entries of the files that cannot be used.
    """

    splits: dict[str, Any] = field(default_factory=dict)
    sentences: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    skipped: list[Skipped] = field(default_factory=list)

    def item(self, id: str, *, split: str) -> Item:
        """Return a video with its captions in the order of their numbers, by which they are called, too."""
        lines = sorted(self.sentences.get(id, ()))
        return Item(
            id=id,
            split=split,
            captions=tuple(caption for _, caption in lines),
            caption_ids=tuple(str(number) for number, _ in lines),
        )


def read_annotations(paths: Sequence[str | Path]) -> Annotations:
    """Read one or several files of MSR-VTT's form together.

    Entries of another form, second entries of a video or a sentence, and captions of videos that no file lists are
    skipped.

    Raises:
        InputError: a file is missing, cut short or of another form.
    """
    read = Annotations()
    seen: set[tuple[str, int]] = set()
    for path in map(Path, paths):
        data = read_json(path, what=_WHAT)
        if not isinstance(data, dict) or not all(
            isinstance(data.get(key), list) for key in ("videos", "sentences")
        ):
            raise InputError(f"{path}: not of the expected form: {_WHAT}")
        for number, video in enumerate(data["videos"]):
            _add_video(read, video, where=f"{path.name}, video {number}")
        for number, sentence in enumerate(data["sentences"]):
            _add_sentence(read, sentence, where=f"{path.name}, sentence {number}", seen=seen)
    for id in [id for id in read.sentences if id not in read.splits]:
        for number, _ in read.sentences.pop(id):
            where = f"sentence {number}, of the video {id}"
            read.skipped.append(
                Skipped(where=where, why="a caption of a video that is not listed", part=True)
            )
    return read


def read_msrvtt(*paths: str | Path) -> Iterator[Item | Skipped]:
    """Yield the videos of the files, in their order, each with its captions in the order of `sen_id`.

    Raises:
        InputError: as `read_annotations`.
    """
    read = read_annotations(paths)
    yield from read.skipped
    for id, split in read.splits.items():
        if isinstance(split, str) and split in _SPLITS:
            yield read.item(id, split=_SPLITS[split])
        else:
            where = f"id {id}, split {json.dumps(split):.60}"
            yield Skipped(where=where, why=f"unknown split, expected {', '.join(_SPLITS)}")


def _add_video(read: Annotations, video: Any, *, where: str) -> None:
    id = video.get("video_id") if isinstance(video, dict) else None
    if not isinstance(id, str) or not id:
        why = "not of the expected form: a video without a video_id"
        read.skipped.append(Skipped(where=where, why=why))
    elif id in read.splits:
        read.skipped.append(Skipped(where=f"id {id}, {where}", why="duplicate id; the first is kept"))
    else:
        read.splits[id] = video.get("split")


def _add_sentence(read: Annotations, sentence: Any, *, where: str, seen: set[tuple[str, int]]) -> None:
    entry = sentence if isinstance(sentence, dict) else {}
    number, id, caption = entry.get("sen_id"), entry.get("video_id"), entry.get("caption")
    if not isinstance(number, int) or not isinstance(id, str):
        why = "not of the expected form: a sentence without a sen_id or video_id"
    elif not isinstance(caption, str):
        why = "a caption that is not a string"
    elif (id, number) in seen:
        why = "a sen_id that the video has already; the first is kept"
    else:
        seen.add((id, number))
        read.sentences[id].append((number, caption))
        return
    read.skipped.append(Skipped(where=where, why=why, part=True))
