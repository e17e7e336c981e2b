"""VATEX's JSON: videos with ten English captions each, and HGR's division of the validation set.

`[{"videoID": "<YouTube id>_<start>_<end>", "enCap": [caption, ...], ...}, ...]` in `vatex_training_v1.0.json` (25,991
videos) and `vatex_validation_v1.0.json` (3,000). Retrieval divides the validation videos into `val` and `test`, 1,500
each. HGR drew them by lot, and its lists come with its features only; without them a draw of our own takes their place,
and scores on it compare with published ones only roughly.

Source: Wang et al., "VATEX: a large-scale, high-quality multilingual dataset for video-and-language research", ICCV
2019; Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning", CVPR 2020, section 4.1.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import identity, read_json
from infra.registry import READERS
from infra.store.findings import Skipped
from tasks.datasets.corpus import CorpusSummary, Item
from tasks.datasets.draws import draw
from tasks.datasets.id_lists import read_ids
from tasks.datasets.published import VATEX
from tasks.datasets.reader import Reading
from tasks.datasets.videos.media import VideoReader

_WHAT = 'VATEX\'s JSON, [{"videoID", "enCap": [caption, ...]}, ...]'


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
    """The same of test, such as HGR's tst_names.npy."""
    seed: int = 0
    """Of the draw that divides the validation videos where no list is given."""

    @property
    def _lists(self) -> list[Path]:
        return [path for path in (self.val_ids, self.test_ids) if path]

    def read(self) -> Reading:
        """Return the videos of both files; see `read_vatex`."""
        files = identity(self.training, self.validation, *self._lists)
        items = read_vatex(
            self.training, self.validation, val_ids=self.val_ids, test_ids=self.test_ids, seed=self.seed
        )
        source = {"files": files, **({} if self._lists else {"seed": self.seed})}
        return self.reading(items, source=source, published=[VATEX])

    def remarks(self, summary: CorpusSummary) -> Iterator[str]:
        """Say how the validation videos were divided."""
        if self._lists:
            yield f"val and test are those of {' and '.join(path.name for path in self._lists)}"
        else:
            yield (
                f"val and test are halves of {self.validation.name}, drawn with seed {self.seed}: NOT the published "
                "split, whose lists come with HGR's features (--val-ids, --test-ids)"
            )


def read_vatex(
    training: str | Path,
    validation: str | Path,
    *,
    val_ids: str | Path | None = None,
    test_ids: str | Path | None = None,
    seed: int = 0,
) -> Iterator[Item | Skipped]:
    """Yield the training videos, then the validation videos as `val` or `test`, in the order of the files.

    Args:
        training: `vatex_training_v1.0.json`.
        validation: `vatex_validation_v1.0.json`.
        val_ids: `.txt`, `.json` or `.npy` list of the videos of `val`.
        test_ids: the same of `test`. Where one list alone is given, the other split has the rest; where neither is,
            `val` is one half, drawn by lot.
        seed: of that draw.

    Raises:
        InputError: a file is missing, damaged or of another form, or a list is a pickle.
    """
    lists = {"test": test_ids, "val": val_ids}
    ids = {split: dict.fromkeys(read_ids(path)) for split, path in lists.items() if path}
    seen: set[str] = set()
    for entry in _read(training, seen=seen):
        yield entry if isinstance(entry, Skipped) else _item(entry, split="train")
    entries = list(_read(validation, seen=seen))
    yield from (entry for entry in entries if isinstance(entry, Skipped))
    videos = {entry["videoID"]: entry for entry in entries if isinstance(entry, dict)}
    splits = yield from _divide(videos, ids, seed=seed)
    for id, video in videos.items():
        if id in splits:
            yield _item(video, split=splits[id])
        else:
            yield Skipped(where=f"id {id}", why="a validation video that neither list has", wanted=False)


def _read(path: str | Path, *, seen: set[str]) -> Iterator[dict[str, Any] | Skipped]:
    """Yield the usable entries of a file, with captions that are strings."""
    data = read_json(path, what=_WHAT)
    if not isinstance(data, list):
        raise InputError(f"{path}: not of the expected form: {_WHAT}")
    for number, entry in enumerate(data):
        where = f"{Path(path).name}, entry {number}"
        id = entry.get("videoID") if isinstance(entry, dict) else None
        captions = entry.get("enCap") if isinstance(entry, dict) else None
        if not isinstance(id, str) or not isinstance(captions, list):
            yield Skipped(where=where, why="not of the expected form: no videoID, or no list enCap")
            continue
        if id in seen:
            yield Skipped(where=f"id {id}, {where}", why="duplicate id; the first is kept")
            continue
        seen.add(id)
        good = [caption for caption in captions if isinstance(caption, str)]
        for _ in range(len(captions) - len(good)):
            yield Skipped(where=f"id {id}", why="a caption that is not a string", part=True)
        yield {"videoID": id, "enCap": good}


def _item(entry: dict[str, Any], *, split: str) -> Item:
    return Item(id=entry["videoID"], split=split, captions=tuple(entry["enCap"]))


def _divide(
    videos: dict[str, Any], ids: dict[str, dict[str, None]], *, seed: int
) -> Generator[Skipped, None, dict[str, str]]:
    """Yield ids of the lists that mean nothing; return the split of each video that has one.

    An id of both lists stays in `test`, so that nothing of the test set is chosen on.
    """
    if not ids:
        chosen = draw(videos, len(videos) // 2, seed=seed)
        return {id: "val" if id in chosen else "test" for id in videos}
    splits: dict[str, str] = {}
    for split, listed in ids.items():
        for id in listed:
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
