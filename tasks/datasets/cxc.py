"""Crisscrossed Captions: people's ratings, 0 to 5, of how alike two items of COCO's val or test split are.

`sits_{split}.csv` rates captions against images, `sts_{split}.csv` captions against captions, `sis_{split}.csv`
images against images. Images are named by their files, `COCO_val2014_000000391895.jpg`, and captions by the `sentid`
of Karpathy's JSON, `COCO_val2014:sentid:648388`; here both are those numbers, the ids of a corpus.

Source: Parekh et al., "Crisscrossed Captions: extended intramodal and intermodal semantic similarity judgments for
MS-COCO", EACL 2021.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets.annotation_files import read_csv
from polypool.tasks.datasets.published_counts import CXC, compare_counts

_IMAGE, _CAPTION = re.compile(r"COCO_\w+_0*(\d+)\.jpg"), re.compile(r"COCO_\w+:sentid:(\d+)")
_COLUMNS = {
    "sits": {"caption": _CAPTION, "image": _IMAGE},
    "sts": {"caption1": _CAPTION, "caption2": _CAPTION},
    "sis": {"image1": _IMAGE, "image2": _IMAGE},
}
_SCORE = "agg_score"
_HIGHEST = 5.0


@dataclass(frozen=True, kw_only=True)
class Rated:
    """The pairs of one file: ids of both items `(P,)`, and the ratings `(P,)`, float64 from 0 to 5."""

    first_P: np.ndarray
    second_P: np.ndarray
    rating_P: np.ndarray

    def __len__(self) -> int:
        return len(self.rating_P)


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """The three files of a split: captions and images, captions, images."""

    sits: Rated
    sts: Rated
    sis: Rated


def cxc_files(folder: str | Path, split: str) -> dict[str, Path]:
    """Return the three files of a split by their kind, `sits`, `sts` and `sis`.

    Raises:
        InputError: one is missing.
    """
    what = (
        f"the official Crisscrossed Captions of the {split} split: sits_{split}.csv, sts_{split}.csv and "
        f"sis_{split}.csv in the folder that the task's parameter cxc names"
    )
    return {kind: existing(Path(folder) / f"{kind}_{split}.csv", what=what) for kind in _COLUMNS}


def read_cxc(folder: str | Path, split: str) -> Ratings:
    """Read the ratings of a split; where there are not as many as published, that is printed.

    Args:
        folder: of the official files.
        split: `val` or `test`.

    Raises:
        InputError: a file is missing, has other columns or is cut short.
    """
    rated = {kind: _read(path, _COLUMNS[kind]) for kind, path in cxc_files(folder, split).items()}
    counts = {kind: len(pairs) for kind, pairs in rated.items()}
    if split in CXC and CXC[split].differences(counts):
        print(f"{folder}: {compare_counts([CXC[split]], counts)}")
    return Ratings(**rated)


def _read(path: Path, columns: dict[str, re.Pattern[str]]) -> Rated:
    pairs = []
    for row in read_csv(path, columns=[*columns, _SCORE]):
        if isinstance(row, Skipped):
            raise InputError(f"{path.parent / row.where}: {row.why}; fetch the official file again")
        where, (*items, score) = row
        pairs.append(_pair(items, score, columns=columns, where=f"{path.parent / where}"))
    if not pairs:
        raise InputError(f"{path}: no ratings; the file is cut short: fetch it again")
    first_P, second_P, rating_P = zip(*pairs, strict=True)
    return Rated(first_P=np.array(first_P), second_P=np.array(second_P), rating_P=np.array(rating_P))


def _pair(
    items: list[str], score: str, *, columns: dict[str, re.Pattern[str]], where: str
) -> tuple[str, str, float]:
    ids = []
    for item, (name, form) in zip(items, columns.items(), strict=True):
        match = form.fullmatch(item)
        if not match:
            raise InputError(f"{where}: {name} is {item!r:.60}, expected the form {form.pattern}")
        ids.append(match[1])
    try:
        rating = float(score)
    except ValueError:
        rating = np.nan
    if not 0 <= rating <= _HIGHEST:
        raise InputError(f"{where}: {_SCORE} is {score!r:.60}, expected a number from 0 to {_HIGHEST:.0f}")
    return ids[0], ids[1], rating
