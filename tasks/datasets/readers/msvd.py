"""MSVD as retrieval uses it: `AllVideoDescriptions.txt` and a list of clips for each split.

A line of the descriptions is `<clip name> <caption>`; lines that begin with `#` are comments. The lists
`train_list.txt`, `val_list.txt` and `test_list.txt` have a clip name a line: 1,200, 100 and 670 in the usual division,
about 40 captions each.

Source: Chen and Dolan, "Collecting highly parallel data for paraphrase evaluation", ACL 2011; the division by
Venugopalan et al., "Sequence to sequence - video to text", ICCV 2015.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.files import existing, existing_folder, files_like
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotation_files import read_ids
from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets.published_counts import MSVD
from polypool.tasks.datasets.readers.folders import VideoReader
from polypool.tasks.datasets.splits import SPLITS


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
        path = existing(self.captions, what="AllVideoDescriptions.txt, <clip name> <caption> a line")
        folder = existing_folder(
            self.lists, what="a folder with train_list.txt, val_list.txt and test_list.txt"
        )
        lists = {
            split: read_ids(folder / f"{split}_list.txt", what=f"the clips of {split}, a name a line")
            for split in SPLITS
        }
        texts: dict[str, list[str]] = defaultdict(list)
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, start=1):
                words = line.split(maxsplit=1)
                if not words or words[0].startswith("#"):
                    continue
                if len(words) == 2:
                    texts[words[0]].append(words[1])
                else:
                    where, why = f"{path.name}, line {number}", "a clip name without a caption"
                    yield Skipped(where=where, why=why, part=True)
        for split, clips in lists.items():
            for clip in clips:
                yield Item(id=clip, split=split, captions=tuple(texts.get(clip, ())))
        listed = {clip for clips in lists.values() for clip in clips}
        for clip in (clip for clip in texts if clip not in listed):
            where = f"id {clip} ({len(texts[clip])} captions)"
            yield Skipped(where=where, why="captions of a clip that no list has", wanted=False)
