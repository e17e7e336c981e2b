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

from infra.files import existing, existing_folder, files_like, identity
from infra.registry import READERS
from infra.store.findings import Skipped
from tasks.datasets.corpus import Item
from tasks.datasets.id_lists import read_ids
from tasks.datasets.published import MSVD
from tasks.datasets.reader import Reading
from tasks.datasets.videos.media import VideoReader

_SPLITS = ("train", "val", "test")


@READERS.register("msvd")
@dataclass(frozen=True, kw_only=True)
class Msvd(VideoReader):
    """Read MSVD's captions and splits."""

    captions: Path
    """AllVideoDescriptions.txt."""
    lists: Path
    """Folder of train_list.txt, val_list.txt and test_list.txt."""

    def read(self) -> Reading:
        """Return the clips of the lists; see `read_msvd`."""
        files = identity(self.captions, *files_like(self.lists, "*_list.txt"))
        return self.reading(
            read_msvd(self.captions, lists=self.lists), source={"files": files}, published=[MSVD]
        )


def read_msvd(captions: str | Path, *, lists: str | Path) -> Iterator[Item | Skipped]:
    """Yield the clips in the order of the lists, each with all its captions in the order of the file.

    Args:
        captions: `AllVideoDescriptions.txt`.
        lists: folder of the three lists.

    Raises:
        InputError: a file is missing.
    """
    path = existing(captions, what="AllVideoDescriptions.txt, <clip name> <caption> a line")
    folder = existing_folder(lists, what="a folder with train_list.txt, val_list.txt and test_list.txt")
    clips = {
        split: read_ids(folder / f"{split}_list.txt", what=f"the clips of {split}, a name a line")
        for split in _SPLITS
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
                yield Skipped(
                    where=f"{path.name}, line {number}", why="a clip name without a caption", part=True
                )
    seen: set[str] = set()
    for split in _SPLITS:
        for clip in clips[split]:
            if clip in seen:
                where = f"id {clip}, {split}_list.txt"
                yield Skipped(where=where, why="duplicate id; the first is kept", split=split)
            else:
                seen.add(clip)
                yield Item(id=clip, split=split, captions=tuple(texts.get(clip, ())))
    for clip in (clip for clip in texts if clip not in seen):
        where = f"id {clip} ({len(texts[clip])} captions)"
        yield Skipped(where=where, why="captions of a clip that no list has", wanted=False)
