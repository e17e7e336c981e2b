"""Videos with captions: MSR-VTT, in its full splits or in the split 1k-A, MSVD and VATEX.

MSR-VTT has twenty captions of each video. Its JSON is
`{"videos": [{"video_id", "split", ...}, ...], "sentences": [{"sen_id", "video_id", "caption"}, ...]}`, published as
`train_val_videodatainfo.json` and `test_videodatainfo.json`, or merged into one file. Splits are `train`, `validate`
(here `val`) and `test`: 6,513, 497 and 2,990 videos in the whole corpus.

1k-A has 1,000 test videos with one caption each, `key,vid_key,video_id,sentence` in `MSRVTT_JSFUSION_test.csv`, and
about 9,000 or 7,000 to train on, listed in `MSRVTT_train.9k.csv` or `.7k.csv` (column `video_id`). It has no validation
split, and the published codes choose their epoch on the test set. Here a random part of the training videos is `val`,
and the test set is scored once.

Source: Xu et al., "MSR-VTT: a large video description dataset for bridging video and language", CVPR 2016; for 1k-A, Yu
et al., "A joint sequence fusion model for video question answering and retrieval", ECCV 2018 (the test set), and Gabeur
et al., "Multi-modal transformer for video retrieval", ECCV 2020 (9k).

MSVD and VATEX are clips of YouTube with captions; their splits are lists of clips.

Retrieval on MSVD uses `AllVideoDescriptions.txt` and a list of clips for each split. A line of the descriptions is
`<clip name> <caption>`; lines that begin with `#` are comments. The lists `train_list.txt`, `val_list.txt` and
`test_list.txt` have one clip name per line: 1,200, 100 and 670 in the usual division, about 40 captions each.

VATEX's JSON has ten English and ten Chinese captions of each video: `[{"videoID": "<YouTube id>_<start>_<end>",
"enCap": [caption, ...], "chCap": [caption, ...]}, ...]` in `vatex_training_v1.0.json` (25,991 videos) and
`vatex_validation_v1.0.json` (3,000). Retrieval divides the validation videos into `val` and `test`, 1,500 each. HGR
chose these halves at random, and publishes the lists only with its features. Without the lists the halves are other
random ones, and scores are only roughly comparable with published ones.

Source: Chen and Dolan, "Collecting highly parallel data for paraphrase evaluation", ACL 2011; its division by
Venugopalan et al., "Sequence to sequence - video to text", ICCV 2015; Wang et al., "VATEX: a large-scale, high-quality
multilingual dataset for video-and-language research", ICCV 2019; Chen et al., "Fine-grained video-text retrieval with
hierarchical graph reasoning", CVPR 2020, section 4.1.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polypool.infra.files import existing, existing_folder, files_like
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotations import DUPLICATE, misfit, read_csv, read_form, read_ids
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.readers.folders import VideoReader
from polypool.tasks.datasets.splits import MSRVTT, MSRVTT_1KA, MSVD, SPLITS, VATEX, choose, held_out

_MSRVTT = 'MSR-VTT\'s JSON, {"videos": [{"video_id", "split", ...}], "sentences": [{"sen_id", "video_id", "caption"}]}'
_MSRVTT_SPLITS = {"train": "train", "validate": "val", "test": "test"}
_UNKNOWN = "a listed video that the annotations do not have"


_Videos = dict[str, tuple[Any, dict[int, str]]]
"""By id, the split of a video as its file names it (or None), and its captions by `sen_id`."""


def _msrvtt(paths: Sequence[Path]) -> Generator[Skipped, None, _Videos]:
    """Return the videos of one or several files in MSR-VTT's form.

    Malformed and duplicate entries, and captions of unlisted videos, are yielded.

    Raises:
        InputError: a missing, truncated or malformed file.
    """
    splits: dict[str, Any] = {}
    sentences: dict[str, dict[int, str]] = defaultdict(dict)
    for path in paths:
        data = read_form(path, what=_MSRVTT, lists=("videos", "sentences"))
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
        videos = yield from _msrvtt(self.json)
        for id, (split, captions) in videos.items():
            if isinstance(split, str) and split in _MSRVTT_SPLITS:
                yield _item(id, captions, split=_MSRVTT_SPLITS[split])
            else:
                where = f"id {id}, split {json.dumps(split):.60}"
                yield Skipped(where=where, why=f"unknown split, expected {', '.join(_MSRVTT_SPLITS)}")


@READERS.register("msrvtt-1ka")
@dataclass(frozen=True, kw_only=True)
class MsrVtt1kA(VideoReader):
    """Read MSR-VTT's split 1k-A; some training videos become val, for choosing the epoch."""

    json: tuple[Path, ...]
    """MSRVTT_data.json, or the official pair of files."""
    train: Path
    """MSRVTT_train.9k.csv or MSRVTT_train.7k.csv."""
    test: Path
    """MSRVTT_JSFUSION_test.csv."""
    val: int = 500
    """Number of random training videos that become val, as 1k-A has no validation split."""
    seed: int = 0
    """Of the random choice."""

    def read(self) -> Reading:
        """Return the training videos with all their captions, in the order of their list, then the test videos.

        A training video that is also in the test set stays in the test set. The `val` split depends only on its size,
        the usable ids of the training list and the seed.
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
            InputError: a missing, damaged or malformed file, or a `val` of all training videos.
        """
        listed = [*read_csv(self.train, columns=("video_id",))]
        rows = [*read_csv(self.test, columns=("key", "video_id", "sentence"))]
        videos = yield from _msrvtt(self.json)
        tested = {id for _, (_, id, _) in rows}
        usable: dict[str, None] = {}
        for where, (id,) in listed:
            reasons = {
                "a row without a video_id": not id,
                DUPLICATE: id in usable,
                "a training video that the test set has; it is left to the test set": id in tested,
                _UNKNOWN: id not in videos,
                "no captions": not any(map(str.strip, videos.get(id, (None, {}))[1].values())),
            }
            if why := next((why for why, holds in reasons.items() if holds), ""):
                yield Skipped(where=f"{where}, id {id}", why=why, split="train")
            else:
                usable[id] = None
        val = held_out(usable, self.val, seed=self.seed, option="val", file=self.train)
        for id in usable:
            yield _item(id, videos[id][1], split="val" if id in val else "train")
        for where, (key, id, sentence) in rows:
            if id in videos:
                yield Item(id=id, split="test", captions=(sentence,), caption_ids=(key,))
            else:
                why = _UNKNOWN if id else "a row without a video_id"
                yield Skipped(where=f"{where}, id {id}", why=why, split="test")
        for id in (id for id in videos if id not in usable and id not in tested):
            yield Skipped(where=f"id {id}", why="a video that neither list has", wanted=False)


_VATEX = 'VATEX\'s JSON, [{"videoID", "enCap": [caption, ...], "chCap": [...]}, ...]'
_VATEX_CAPTIONS = {"en": "enCap", "zh": "chCap"}
_Captions = dict[str, tuple[str, ...]]


@READERS.register("msvd")
@dataclass(frozen=True, kw_only=True)
class Msvd(VideoReader):
    """Read MSVD's captions and splits."""

    captions: Path
    """AllVideoDescriptions.txt."""
    lists: Path
    """Folder of train_list.txt, val_list.txt and test_list.txt."""

    def read(self) -> Reading:
        """Return the clips in the order of the lists, each with all its captions in the order of the file."""
        return self.reading(
            self._items(), self.captions, *files_like(self.lists, "*_list.txt"), published=[MSVD]
        )

    def _items(self) -> Iterator[Item | Skipped]:
        folder = existing_folder(
            self.lists, what="a folder with train_list.txt, val_list.txt and test_list.txt"
        )
        lists = {
            split: read_ids(folder / f"{split}_list.txt", what=f"the clips of {split}, a name a line")
            for split in SPLITS
        }
        texts: dict[str, list[str]] = defaultdict(list)
        captions = existing(self.captions, what="AllVideoDescriptions.txt, <clip name> <caption> a line")
        lines = captions.read_text("utf-8-sig", "surrogateescape").split("\n")
        for number, line in enumerate(lines, start=1):
            words = line.split(maxsplit=1)
            if not words or words[0].startswith("#"):
                continue
            if len(words) == 2:
                texts[words[0]].append(words[1])
            else:
                where, why = f"{self.captions.name}, line {number}", "a clip name without a caption"
                yield Skipped(where=where, why=why, part=True)
        for split, clips in lists.items():
            for clip in clips:
                yield Item(id=clip, split=split, captions=tuple(texts.get(clip, ())))
        listed = {clip for clips in lists.values() for clip in clips}
        for clip in (clip for clip in texts if clip not in listed):
            where = f"id {clip} ({len(texts[clip])} captions)"
            yield Skipped(where=where, why="captions of a clip that no list has", wanted=False)


@READERS.register("vatex")
@dataclass(frozen=True, kw_only=True)
class Vatex(VideoReader):
    """Read VATEX's English or Chinese captions; the validation videos become val and test."""

    training: Path
    """vatex_training_v1.0.json."""
    validation: Path
    """vatex_validation_v1.0.json."""
    language: Literal["en", "zh"] = "en"
    """Language of the captions: English (`enCap`) or Chinese (`chCap`)."""
    val_ids: Path | None = None
    """.txt, .json or .npy list of the videos of val, such as HGR's val_names.npy."""
    test_ids: Path | None = None
    """The same of test, such as HGR's tst_names.npy; with one list alone, the other split gets the rest."""
    seed: int = 0
    """Of the random halves of the validation videos, without lists."""

    @property
    def _lists(self) -> dict[str, Path]:
        return {split: path for split, path in (("val", self.val_ids), ("test", self.test_ids)) if path}

    def read(self) -> Reading:
        """Return the training videos, then the validation videos as `val` or `test`, in the order of the files."""
        settings = {"language": self.language} | ({} if self._lists else {"seed": self.seed})
        files = (self.training, self.validation, *self._lists.values())
        return self.reading(self._items(), *files, settings=settings, published=[VATEX])

    def remarks(self, summary: CorpusSummary) -> Iterator[str]:
        """Say how the validation videos were divided."""
        if self._lists:
            yield f"val and test follow {' and '.join(path.name for path in self._lists.values())}"
        else:
            yield (
                f"val and test are random halves of {self.validation.name}, seed {self.seed}: NOT the published "
                "split, whose lists come with HGR's features (--val-ids, --test-ids)"
            )

    def _items(self) -> Iterator[Item | Skipped]:
        ids = {split: dict.fromkeys(read_ids(path)) for split, path in self._lists.items()}
        trained = yield from _vatex(self.training, self.language, others={})
        for id, captions in trained.items():
            yield Item(id=id, split="train", captions=captions)
        videos = yield from _vatex(self.validation, self.language, others=trained)
        splits = yield from self._divide(videos, ids)
        for id, captions in videos.items():
            if id in splits:
                yield Item(id=id, split=splits[id], captions=captions)
            else:
                yield Skipped(where=f"id {id}", why="a validation video that neither list has", wanted=False)

    def _divide(
        self, videos: _Captions, ids: dict[str, dict[str, None]]
    ) -> Generator[Skipped, None, dict[str, str]]:
        """Yield listed ids that are unknown, or in both lists; return the split of each video that has one.

        An id of both lists stays in `test`, so that the epoch is not chosen on a test video.
        """
        if not ids:
            chosen = choose(videos, len(videos) // 2, seed=self.seed)
            return {id: "val" if id in chosen else "test" for id in videos}
        splits: dict[str, str] = {}
        for split in ("test", "val"):
            for id in ids.get(split, ()):
                if id not in videos:
                    why = f"an id of the {split} list that the validation file does not have"
                    yield Skipped(where=f"id {id}", why=why)
                elif id in splits:
                    yield Skipped(where=f"id {id}, val list", why="an id of both lists; it stays in test")
                else:
                    splits[id] = split
        if len(ids) == 1:
            rest = "val" if "test" in ids else "test"
            return {id: splits.get(id, rest) for id in videos}
        return splits


def _vatex(path: Path, language: str, *, others: _Captions) -> Generator[Skipped, None, _Captions]:
    """Return the captions of each video of a file; yield malformed entries, duplicates and videos among `others`."""
    videos, field = dict[str, tuple[str, ...]](), _VATEX_CAPTIONS[language]
    for number, entry in enumerate(read_form(path, what=_VATEX)):
        where = f"{path.name}, entry {number}"
        if why := misfit(entry, "a video", **{"videoID": str, field: list}):
            yield Skipped(where=where, why=why)
        elif (id := entry["videoID"]) in videos or id in others:
            yield Skipped(where=f"id {id}, {where}", why=DUPLICATE)
        else:
            videos[id] = tuple(entry[field])
    return videos
