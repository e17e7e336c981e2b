"""Human judgments on COCO beyond its captions: Crisscrossed Captions and ECCV Caption.

Crisscrossed Captions: human ratings, 0 to 5, of the similarity of two items of COCO's val or test split.

`sits_{split}.csv` rates captions against images, `sts_{split}.csv` captions against captions, `sis_{split}.csv`
images against images. The files name an image by its file, `COCO_val2014_000000391895.jpg`, and a caption by its
`sentid` in Karpathy's JSON, `COCO_val2014:sentid:648388`. This module keeps the number, which is the id in a corpus.

Source: Parekh et al., "Crisscrossed Captions: extended intramodal and intermodal semantic similarity judgments for
MS-COCO", EACL 2021.

ECCV Caption: correct matches in COCO's test split beyond its own pairs, found by models and verified by people.

Two JSON files of the public package `eccv-caption` map a query's id to the ids of all its right answers:
`eccv_image_to_caption.json` for 1,261 images and `eccv_caption_to_image.json` for 1,332 captions. The ids are COCO's:
`cocoid` and `sentid` of Karpathy's JSON.

Source: Chun et al., "ECCV Caption: correcting false negatives by collecting machine-and-human-verified image-caption
associations for MS-COCO", ECCV 2022.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.fields import Rule, at_least, from_plain
from polypool.infra.files import existing, read_json
from polypool.tasks.datasets.annotations import read_csv
from polypool.tasks.datasets.splits import CXC, ECCV, compare_counts

_IMAGE, _CAPTION = re.compile(r"COCO_\w+_0*(\d+)\.jpg"), re.compile(r"COCO_\w+:sentid:(\d+)")
_COLUMNS = {
    "sits": {"caption": _CAPTION, "image": _IMAGE},
    "sts": {"caption1": _CAPTION, "caption2": _CAPTION},
    "sis": {"image1": _IMAGE, "image2": _IMAGE},
}
_SCORE = "agg_score"
_HIGHEST = 5.0
_PACKAGE = "eccv_caption"
_DIRECTIONS = ("image_to_caption", "caption_to_image")
_ANSWERS = '{"id of a query": [ids of its right answers, whole numbers], ...}'
_NOT_EMPTY = Rule("not empty", bool)
_Answers: Any = Annotated[dict[str, Annotated[list[Annotated[int, at_least(0)]], _NOT_EMPTY]], _NOT_EMPTY]


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
    """The three files of a split: pairs of caption and image, of two captions, and of two images."""

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
    """Read the ratings of a split, `val` or `test`; print a note if their number is not the published one.

    Raises:
        InputError: a missing or truncated file, one with other columns, or an invalid row.
    """
    rated = {kind: _read_ratings(path, _COLUMNS[kind]) for kind, path in cxc_files(folder, split).items()}
    counts = {kind: len(pairs) for kind, pairs in rated.items()}
    if split in CXC and CXC[split].differences(counts):
        print(f"{folder}: {compare_counts([CXC[split]], counts)}")
    return Ratings(**rated)


def _read_ratings(path: Path, columns: dict[str, re.Pattern[str]]) -> Rated:
    ids, ratings = {name: list[str]() for name in columns}, list[float]()
    for where, (*items, score) in read_csv(path, columns=[*columns, _SCORE]):
        for item, (name, form) in zip(items, columns.items(), strict=True):
            match = form.fullmatch(item)
            if not match:
                raise InputError(
                    f"{path.parent / where}: {name} is {item!r:.60}, expected the form {form.pattern}"
                )
            ids[name].append(match[1])
        try:
            rating = float(score)
        except ValueError:
            rating = np.nan
        if not 0 <= rating <= _HIGHEST:
            raise InputError(
                f"{path.parent / where}: {_SCORE} is {score!r:.60}, expected a number from 0 to {_HIGHEST:.0f}"
            )
        ratings.append(rating)
    if not ratings:
        raise InputError(f"{path}: no ratings; the file is cut short: fetch it again")
    first_P, second_P = map(np.array, ids.values())
    return Rated(first_P=first_P, second_P=second_P, rating_P=np.array(ratings))


@dataclass(frozen=True, kw_only=True)
class Extended:
    """Ids of the right answers of each query, by the query's id; each answer once.

    Attributes:
        image_to_caption: captions that are right for an image.
        caption_to_image: images that are right for a caption.
    """

    image_to_caption: Mapping[str, tuple[str, ...]]
    caption_to_image: Mapping[str, tuple[str, ...]]


def eccv_files(folder: str | Path | None) -> dict[str, Path]:
    """Return the two files by their direction.

    Args:
        folder: of the files; None for the installed package.

    Raises:
        InputError: a missing file or package.
    """
    if folder is None:
        spec = find_spec(_PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                "the right answers of ECCV Caption come with the package eccv-caption, which is not installed: "
                "pip install 'polypool[eccv]', or name a folder of its JSON files by the task's parameter eccv, "
                "such as --task \"image_text(eccv='data/eccv')\""
            )
        folder = Path(next(iter(spec.submodule_search_locations))) / "data"
    what = "a file of ECCV Caption, which the package eccv-caption has in its folder data"
    return {name: existing(Path(folder) / f"eccv_{name}.json", what=what) for name in _DIRECTIONS}


def read_eccv(folder: str | Path | None) -> Extended:
    """Read both `eccv_files`; print a note if the number of pairs is not the published one.

    Raises:
        InputError: a missing file or package, or a damaged or malformed file.
    """
    files = eccv_files(folder)
    read = {name: _read_answers(path) for name, path in files.items()}
    counts = {name: sum(map(len, answers.values())) for name, answers in read.items()}
    if ECCV.differences(counts):
        print(f"{files[_DIRECTIONS[0]].parent}: {compare_counts([ECCV], counts)}")
    return Extended(**read)


def _read_answers(path: Path) -> dict[str, tuple[str, ...]]:
    read = read_json(path, what=f"a file of ECCV Caption, {_ANSWERS}")
    answers = from_plain(_Answers, read, where=f"{path}, expected {_ANSWERS}")
    return {query: tuple(map(str, dict.fromkeys(ids))) for query, ids in answers.items()}
