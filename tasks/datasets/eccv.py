"""ECCV Caption: right answers that COCO's test split has and does not know of, found by models and checked by people.

Two JSON files of the public package `eccv-caption` map a query's id to the ids of all its right answers:
`eccv_image_to_caption.json` for 1,261 images and `eccv_caption_to_image.json` for 1,332 captions. Images have COCO's
ids and captions those of its annotations, the `cocoid` and `sentid` of Karpathy's JSON.

Source: Chun et al., "ECCV Caption: correcting false negatives by collecting machine-and-human-verified image-caption
associations for MS-COCO", ECCV 2022.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.files import existing, read_json
from polypool.tasks.datasets.published_counts import ECCV, compare_counts

_PACKAGE = "eccv_caption"
_DIRECTIONS = ("image_to_caption", "caption_to_image")
_FORM = '{"id of a query": [ids of its right answers, whole numbers], ...}'


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
        folder: that holds them; where None, that of the installed package.

    Raises:
        InputError: one is missing, or the package is.
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
    """Read both files; where there are not as many pairs as published, that is printed.

    Args:
        folder: see `eccv_files`.

    Raises:
        InputError: a file or the package is missing, or a file is damaged or of another form.
    """
    files = eccv_files(folder)
    read = {name: _read(path) for name, path in files.items()}
    counts = {name: sum(map(len, answers.values())) for name, answers in read.items()}
    if ECCV.differences(counts):
        print(f"{files[_DIRECTIONS[0]].parent}: {compare_counts([ECCV], counts)}")
    return Extended(**read)


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    answers = read_json(path, what=f"a file of ECCV Caption, {_FORM}")
    if not isinstance(answers, dict) or not answers:
        raise InputError(f"{path}: not of the expected form: {_FORM}")
    return {query: _ids(query, ids, path) for query, ids in answers.items()}


def _ids(query: str, ids: Any, path: Path) -> tuple[str, ...]:
    if not (query.isascii() and query.isdecimal()):
        raise InputError(f"{path}: the query {reprlib.repr(query)} is no id; expected {_FORM}")
    whole = isinstance(ids, list) and all(type(id) is int and id >= 0 for id in ids)
    if not (whole and ids):
        raise InputError(f"{path}: query {query} has {reprlib.repr(ids)}; expected {_FORM}")
    return tuple(str(id) for id in dict.fromkeys(ids))
