"""Judgments of people on pairs of an image and a caption of Flickr8k, which name both by the image's file.

`ExpertAnnotations.txt`: an image, a caption, and the marks of three experts, from 1, the caption does not describe the
image at all, to 4, it does. `CrowdFlowerAnnotations.txt`: an image, a caption, the share of people who said that the
caption describes the image, and how many said yes and no. Fields are separated by tabs; a caption is its image's file
and its number from 0, `1056338697_4f7d7ce270.jpg#2`.

All 1,000 images and all captions that are judged are those of the official test split, which is Karpathy's.

Source: Hodosh, Young and Hockenmaier, "Framing image description as a ranking task", JAIR 47, 2013.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing
from polypool.tasks.datasets.published_counts import FLICKR8K_JUDGMENTS, compare_counts

Kind = Literal["expert", "crowd"]
FILES: dict[Kind, str] = {"expert": "ExpertAnnotations.txt", "crowd": "CrowdFlowerAnnotations.txt"}
_IMAGE, _CAPTION = re.compile(r"([^/#\s]+)\.jpg"), re.compile(r"([^/#\s]+)\.jpg#(\d{1,3})")
_FIELDS = 5
_MARKS = ("1", "2", "3", "4")


@dataclass(frozen=True, kw_only=True)
class Judgments:
    """P pairs of an image and a caption, each with R ratings.

    Attributes:
        image_P: the file of each image, without its ending.
        owner_P: that of the image that the caption was written for.
        number_P: which of that image's captions it is, from 0.
        rating_PR: three marks from 1 to 4, or one share from 0 to 1; float64.
    """

    image_P: np.ndarray
    owner_P: np.ndarray
    number_P: np.ndarray
    rating_PR: np.ndarray

    def __len__(self) -> int:
        return len(self.image_P)

    @property
    def own_P(self) -> np.ndarray:
        """Whether the caption was written for the image."""
        return self.image_P == self.owner_P


def judgment_file(folder: str | Path, kind: Kind) -> Path:
    """Return the file of one kind.

    Raises:
        InputError: it is missing.
    """
    what = f"the file {FILES[kind]} of Flickr8k's text archive, in the folder that the task's parameter flickr8k names"
    return existing(Path(folder) / FILES[kind], what=what)


def read_judgments(folder: str | Path, kind: Kind) -> Judgments:
    """Read the judgments of one kind; where there are not as many as published, that is printed.

    Raises:
        InputError: the file is missing, or a line has another form.
    """
    path = judgment_file(folder, kind)
    ratings = _marks if kind == "expert" else _share
    lines = path.read_text("utf-8", "surrogateescape").splitlines()
    rows = [_row(line, f"{path}: line {n}", ratings) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{path}: no judgments; the file is cut short: fetch it again")
    published = FLICKR8K_JUDGMENTS[kind]
    if published.differences({kind: len(rows)}):
        print(f"{path}: {compare_counts([published], {kind: len(rows)})}")
    image_P, owner_P, number_P, rating_PR = map(np.array, zip(*rows, strict=True))
    return Judgments(image_P=image_P, owner_P=owner_P, number_P=number_P, rating_PR=rating_PR)


def _row(
    line: str, where: str, ratings: Callable[[Sequence[str]], list[float] | None]
) -> tuple[str, str, int, list[float]]:
    fields = [field.strip() for field in line.split("\t")]
    image, caption = (
        (form.fullmatch(field) for form, field in zip((_IMAGE, _CAPTION), fields, strict=False))
        if len(fields) == _FIELDS
        else (None, None)
    )
    values = ratings(fields[2:]) if image and caption else None
    if not (image and caption and values):
        raise InputError(
            f"{where}: {line!r:.80} is no judgment; expected IMAGE.jpg, IMAGE.jpg#NUMBER and three numbers with tabs "
            "between them: marks from 1 to 4, or the share of yes, and how many said yes and no"
        )
    return image[1], caption[1], int(caption[2]), values


def _marks(fields: Sequence[str]) -> list[float] | None:
    return [float(mark) for mark in fields] if all(mark in _MARKS for mark in fields) else None


def _share(fields: Sequence[str]) -> list[float] | None:
    """Return the share of yes, which must be that of the counts beside it."""
    try:
        share, yes, no = float(fields[0]), int(fields[1]), int(fields[2])
    except ValueError:
        return None
    fits = min(yes, no) >= 0 < yes + no and math.isclose(share, yes / (yes + no), abs_tol=1e-6)
    return [share] if fits else None
