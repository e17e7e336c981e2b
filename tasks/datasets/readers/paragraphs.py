"""Paragraph retrieval of DiDeMo and ActivityNet Captions: one text a video, from the descriptions of its moments.

Each split is a file:

- DiDeMo's `train_data.json`, `val_data.json` and `test_data.json`, `[{"video": "<name>.mov", "description", "times",
  ...}, ...]`, several entries a video: 8,395, 1,065 and 1,004 videos. Ids are names without the suffix, which differs
  between entries of a video: `<name>.mov`, `<name>.`.
- ActivityNet Captions' `train.json` and `val_1.json`, `{"v_<YouTube id>": {"duration", "timestamps", "sentences":
  [...]}, ...}`: 10,009 and 4,917 videos. The second file is the usual test set.

The lists of paragraphs that retrieval codes publish, `[{"video_id", "desc"}, ...]`, are tables: `ingest table`.

A paragraph joins a video's descriptions by spaces, in the order of the file, as CLIP4Clip does; DiDeMo's are not in the
order of time.

Source: Hendricks et al., "Localizing moments in video with natural language", ICCV 2017; Krishna et al.,
"Dense-captioning events in videos", ICCV 2017; the task: Zhang et al., "Cross-modal and hierarchical modeling of video
and text", ECCV 2018.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import read_json
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotations import FORM, misfit
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.readers.folders import VIDEOS, VideoReader
from polypool.tasks.datasets.splits import ACTIVITYNET, DIDEMO, held_out

_WHAT = 'DiDeMo\'s JSON, [{"video", "description", ...}, ...], or ActivityNet\'s, {"v_ID": {"sentences": [...]}, ...}'


@READERS.register("paragraphs")
@dataclass(frozen=True, kw_only=True)
class Paragraphs(VideoReader):
    """Read DiDeMo's or ActivityNet's paragraphs, a file a split."""

    train: Path
    """Of the videos to train on: DiDeMo's train_data.json, ActivityNet's train.json."""
    test: Path
    """Of the test videos: DiDeMo's test_data.json, ActivityNet's val_1.json."""
    val: Path | None = None
    """Of the videos that choose the epoch: DiDeMo's val_data.json; random training videos without it."""
    held_out: int = 500
    """Number of random training videos that become val, without a file of val."""
    seed: int = 0
    """Of the random choice."""

    def read(self) -> Reading:
        """Return the videos of train, val and test, in the order of the files.

        A video in several files belongs to test rather than val, and to val rather than train.
        """
        settings = {} if self.val else {"held_out": self.held_out, "seed": self.seed}
        files = (self.train, *([self.val] if self.val else []), self.test)
        return self.reading(self._items(), *files, settings=settings, published=[DIDEMO, ACTIVITYNET])

    def remarks(self, summary: CorpusSummary) -> Iterator[str]:
        """Say where the validation split comes from."""
        if not self.val:
            yield (
                f"val is {summary.splits.get('val', 0):,} videos held out of {self.train.name} (seed {self.seed}); "
                "nothing is chosen on the test set"
            )

    def _items(self) -> Iterator[Item | Skipped]:
        """Yield the videos.

        Raises:
            InputError: a missing, damaged or malformed file, or a `held_out` of all training videos.
        """
        splits: dict[str, dict[str, str]] = {}
        for split, path in (("test", self.test), ("val", self.val), ("train", self.train)):
            splits[split] = (yield from _videos(path, splits)) if path else {}
        if not self.val:
            train = splits["train"]
            val = held_out(train, self.held_out, seed=self.seed, option="held_out", file=self.train)
            splits["val"] = {id: train.pop(id) for id in [*train] if id in val}
        for split in ("train", "val", "test"):
            for id, paragraph in splits[split].items():
                yield Item(id=id, split=split, captions=(paragraph,))


def _videos(path: Path, others: dict[str, dict[str, str]]) -> Generator[Skipped, None, dict[str, str]]:
    """Return the paragraph of each video of a file; yield malformed entries and videos of other splits.

    Raises:
        InputError: a missing, truncated or malformed file.
    """
    data = read_json(path, what=_WHAT)
    if isinstance(data, dict):
        data = [
            moments | {"video": id} if isinstance(moments, dict) else moments for id, moments in data.items()
        ]
    if not isinstance(data, list):
        raise InputError(f"{path}: {FORM}: {_WHAT}")
    videos: dict[str, list[str]] = defaultdict(list)
    for number, entry in enumerate(data):
        where = f"{path.name}, entry {number}"
        many = isinstance(entry, dict) and "sentences" in entry
        text, kind = ("sentences", list) if many else ("description", str)
        if why := misfit(entry, "a video", **{"video": str, text: kind}):
            yield Skipped(where=where, why=why)
            continue
        stem, suffix = os.path.splitext(entry["video"])
        id = stem if not many or suffix.lower() in VIDEOS else entry["video"]
        if any(id in others[split] for split in others):
            yield Skipped(where=f"id {id}, {where}", why="a video of another split, where it is left")
        elif many and not all(isinstance(sentence, str) for sentence in entry[text]):
            yield Skipped(where=f"id {id}, {where}", why=f"{FORM}: a sentence that is no string")
        else:
            videos[id] += entry[text] if many else [entry[text]]
    return {id: " ".join(texts) for id, texts in videos.items()}
