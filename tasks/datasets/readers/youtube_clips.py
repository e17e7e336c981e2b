"""MSVD and VATEX: clips of YouTube with captions, whose splits are lists of clips.

MSVD as retrieval uses it is `AllVideoDescriptions.txt` and a list of clips for each split. A line of the descriptions
is `<clip name> <caption>`; lines that begin with `#` are comments. The lists `train_list.txt`, `val_list.txt` and
`test_list.txt` have a clip name a line: 1,200, 100 and 670 in the usual division, about 40 captions each.

VATEX's JSON has ten English captions of each video: `[{"videoID": "<YouTube id>_<start>_<end>", "enCap": [caption,
...], ...}, ...]` in `vatex_training_v1.0.json` (25,991 videos) and `vatex_validation_v1.0.json` (3,000). Retrieval
divides the validation videos into `val` and `test`, 1,500 each. HGR chose them at random, and its lists come with its
features only; without them another random half takes their place, and scores on it compare with published ones only
roughly.

Source: Chen and Dolan, "Collecting highly parallel data for paraphrase evaluation", ACL 2011; its division by
Venugopalan et al., "Sequence to sequence - video to text", ICCV 2015; Wang et al., "VATEX: a large-scale, high-quality
multilingual dataset for video-and-language research", ICCV 2019; Chen et al., "Fine-grained video-text retrieval with
hierarchical graph reasoning", CVPR 2020, section 4.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.files import existing_folder, files_like
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotations import DUPLICATE, misfit, read_form, read_ids, read_lines
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.published_counts import MSVD, VATEX
from polypool.tasks.datasets.readers.folders import VideoReader
from polypool.tasks.datasets.splits import SPLITS, choose

_WHAT = 'VATEX\'s JSON, [{"videoID", "enCap": [caption, ...]}, ...]'
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
        lines = read_lines(self.captions, what="AllVideoDescriptions.txt, <clip name> <caption> a line")
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
    """Read VATEX's English captions; the validation videos become val and test."""

    training: Path
    """vatex_training_v1.0.json."""
    validation: Path
    """vatex_validation_v1.0.json."""
    val_ids: Path | None = None
    """.txt, .json or .npy list of the videos of val, such as HGR's val_names.npy."""
    test_ids: Path | None = None
    """The same of test, such as HGR's tst_names.npy; with one list alone, the other split has the rest."""
    seed: int = 0
    """Of the random halves of the validation videos where no list is given."""

    @property
    def _lists(self) -> dict[str, Path]:
        return {split: path for split, path in (("val", self.val_ids), ("test", self.test_ids)) if path}

    def read(self) -> Reading:
        """Return the training videos, then the validation videos as `val` or `test`, in the order of the files."""
        settings = {} if self._lists else {"seed": self.seed}
        files = (self.training, self.validation, *self._lists.values())
        return self.reading(self._items(), *files, settings=settings, published=[VATEX])

    def remarks(self, summary: CorpusSummary) -> Iterator[str]:
        """Say how the validation videos were divided."""
        if self._lists:
            yield f"val and test are those of {' and '.join(path.name for path in self._lists.values())}"
        else:
            yield (
                f"val and test are random halves of {self.validation.name}, seed {self.seed}: NOT the published "
                "split, whose lists come with HGR's features (--val-ids, --test-ids)"
            )

    def _items(self) -> Iterator[Item | Skipped]:
        ids = {split: dict.fromkeys(read_ids(path)) for split, path in self._lists.items()}
        trained = yield from _read(self.training, others={})
        for id, captions in trained.items():
            yield Item(id=id, split="train", captions=captions)
        videos = yield from _read(self.validation, others=trained)
        splits = yield from self._divide(videos, ids)
        for id, captions in videos.items():
            if id in splits:
                yield Item(id=id, split=splits[id], captions=captions)
            else:
                yield Skipped(where=f"id {id}", why="a validation video that neither list has", wanted=False)

    def _divide(
        self, videos: _Captions, ids: dict[str, dict[str, None]]
    ) -> Generator[Skipped, None, dict[str, str]]:
        """Yield ids of the lists that mean nothing; return the split of each video that has one.

        An id of both lists stays in `test`, so that nothing of the test set is chosen on.
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


def _read(path: Path, *, others: _Captions) -> Generator[Skipped, None, _Captions]:
    """Yield what cannot be used of a file; return the captions of each of its videos that is none of the others."""
    videos: _Captions = {}
    for number, entry in enumerate(read_form(path, what=_WHAT)):
        where = f"{path.name}, entry {number}"
        if why := misfit(entry, "a video", videoID=str, enCap=list):
            yield Skipped(where=where, why=why)
        elif (id := entry["videoID"]) in videos or id in others:
            yield Skipped(where=f"id {id}, {where}", why=DUPLICATE)
        else:
            videos[id] = tuple(entry["enCap"])
    return videos
