"""Rows of requests as the model takes them, each checked by itself, before the model sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infra.errors import InputError
from infra.fields import is_unicode
from pipelines.exporting.columns import FEATURES, IMAGE, TEXT
from pipelines.exporting.rows import file_of, matrix
from pipelines.serving.schema import Described, Route, Row
from pipelines.serving.settings import Limits


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A row that can be answered.

    Attributes:
        route: what is asked.
        features: `(N, F)` of an image or video.
        image: the bytes of an image's file.
        text: a caption or question.
        k: hits that a search is to give.
    """

    route: Route
    features: np.ndarray | None = None
    image: bytes | None = None
    text: str | None = None
    k: int = 0


def read_rows(route: Route, rows: list[Row], described: Described, limits: Limits, *, k: int) -> list[Asked]:
    """Return the rows of a request as they are asked.

    Raises:
        InputError: too many of them, or one that asks for too much, for nothing, or not what this model takes; the
            message begins with its number, from 0.
    """
    if len(rows) > limits.max_rows:
        raise InputError(f"{len(rows):,} rows; at most {limits.max_rows:,} are taken in a request")
    if k > limits.max_k:
        raise InputError(f"k is {k:,}; at most {limits.max_k:,}")
    asked = []
    for number, row in enumerate(rows):
        try:
            asked.append(_read(route, row, described, limits, k))
        except InputError as error:
            raise InputError(f"row {number}: {error}") from error
    return asked


def _read(route: Route, row: Row, described: Described, limits: Limits, k: int) -> Asked:
    given = [name for name in (FEATURES, IMAGE, TEXT) if getattr(row, name) is not None]
    visual = " or ".join(_taken(described))
    both = route in ("score", "answer")
    if both and not (len(given) == 2 and TEXT in given):
        what = "a question is asked of an image" if route == "answer" else "an image or video is compared"
        raise InputError(f"{what}; give {visual}, and {TEXT!r}, not {_list(given)}")
    if not both and len(given) != 1:
        raise InputError(f"give one of {visual} and {TEXT!r}, not {_list(given)}")
    for name in given:
        if name != TEXT and repr(name) not in _taken(described):
            raise InputError(f"the model takes no {name!r} here; give {visual}")
    return Asked(
        route=route,
        features=None if row.features is None else _features(row.features, described, limits),
        image=None if row.image is None else file_of(row.image),
        text=None if row.text is None else _text(row.text, limits),
        k=k,
    )


def _taken(described: Described) -> list[str]:
    return [repr(FEATURES)] * bool(described.features) + [repr(IMAGE)] * described.image


def _list(given: list[str]) -> str:
    return " and ".join(map(repr, given)) or "nothing"


def _features(features: list[list[float]], described: Described, limits: Limits) -> np.ndarray:
    x_NF = matrix(features)
    if x_NF.ndim != 2 or x_NF.shape[1] != described.features:
        raise InputError(f"{FEATURES!r} have shape {x_NF.shape}; expected (elements, {described.features})")
    if len(x_NF) > limits.max_elements:
        raise InputError(
            f"{FEATURES!r} have {len(x_NF):,} elements; at most {limits.max_elements:,} are taken"
        )
    if not np.isfinite(x_NF).all():
        raise InputError(f"{FEATURES!r} hold numbers that are too large for float32")
    return x_NF


def _text(text: str, limits: Limits) -> str:
    if len(text) > limits.max_characters:
        raise InputError(f"a text of {len(text):,} characters; at most {limits.max_characters:,} are taken")
    if not is_unicode(text):
        raise InputError("a text with half a character; send valid Unicode")
    if not any(map(str.isalnum, text)):
        raise InputError("a text without a word; give one such as 'a dog on the grass'")
    return text
