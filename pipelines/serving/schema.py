"""Requests and answers of the HTTP API: what pydantic checks and OpenAPI shows, and rows as the model takes them.

Columns have the names and meanings of `polypool.pipelines.models.table_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from polypool.infra.errors import InputError
from polypool.infra.fields import is_unicode
from polypool.pipelines.models.table_rows import FEATURES, IMAGE, TEXT, decode_image, matrix
from polypool.pipelines.serving.settings import Limits

Route = Literal["embed", "score", "answer", "search"]
"""What a model can do, each at the address of its name."""


class Row(BaseModel):
    """One input: an image or video, as features or as an image file, a text, or both."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    features: list[list[float]] | None = Field(
        None, description="N vectors of the width that the model reads"
    )
    image: str | None = Field(None, description="an image file, in base64")
    text: str | None = Field(None, description="a caption to embed or search by, or a question")


class Rows(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rows: list[Row] = Field(min_length=1)


class SearchRows(Rows):
    """The body of a search."""

    k: int = Field(10, ge=1, description="results of each row")


class Embedding(BaseModel):
    """A vector; several of a model of sets; mean and log-variance of one of distributions."""

    embedding: list[float] | list[list[float]]


class Score(BaseModel):
    """The similarity of image or video and text; higher is more alike."""

    score: float


class Answer(BaseModel):
    """The most probable answer to a question, and its probability."""

    answer: str
    probability: float


class Hit(BaseModel):
    """One result: an item found by text, with its first caption, or a caption found by image or video."""

    rank: int
    score: float
    id: str
    caption: str


class Hits(BaseModel):
    """The results of one row, best first."""

    hits: list[Hit]


Result = TypeVar("Result", Embedding, Score, Answer, Hits)


class Results(BaseModel, Generic[Result]):
    """Answers, in the order of the rows."""

    rows: list[Result]


class Failure(BaseModel):
    """Why there is no answer."""

    error: str


class Described(BaseModel):
    """What is served: the answer to `GET /`.

    `features` is the width of the vectors that are taken, 0 where none are; `image` says whether images are. `shape` is
    that of an embedding: (D), or (K, D) with K = -1 where sets differ in size. `digests` are those of the training
    data, where it is at hand.
    """

    source: str
    title: str
    recipe: str
    task: str
    modality: str
    aggregator: str
    similarity: str
    metric: str
    protocol: str
    routes: list[Route]
    page: bool
    features: int
    image: bool
    shape: list[int]
    split: str
    items: int
    digests: dict[str, str]
    limits: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A checked row, as the model takes it.

    Attributes:
        route: what to do.
        features: `(N, F)` of an image or video.
        image: the bytes of an image file, or a video file where the model reads videos.
        id: an item of the corpus.
        text: a caption or question.
        k: number of results.
    """

    route: Route
    features: np.ndarray | None = None
    image: bytes | None = None
    id: str = ""
    text: str | None = None
    k: int = 1


def read_rows(
    route: Route, rows: list[Row], described: Described, limits: Limits, *, k: int = 1
) -> list[ModelRequest]:
    """Check the rows of a request.

    Raises:
        InputError: there are too many, or one asks for too much, for nothing, or for what this model does not take; the
            message begins with its number, from 0.
    """
    if len(rows) > limits.max_rows:
        raise InputError(f"{len(rows):,} rows; at most {limits.max_rows:,} are taken in a request")
    if k > limits.max_k:
        raise InputError(f"k is {k:,}; at most {limits.max_k:,}")
    requests = []
    for number, row in enumerate(rows):
        try:
            _check_columns(route, row, described)
            if row.text is not None:
                check_text(row.text, limits)
            requests.append(
                ModelRequest(
                    route=route,
                    features=None if row.features is None else _features(row.features, described, limits),
                    image=None if row.image is None else decode_image(row.image),
                    text=row.text,
                    k=k,
                )
            )
        except InputError as error:
            raise InputError(f"row {number}: {error}") from error
    return requests


def _check_columns(route: Route, row: Row, described: Described) -> None:
    given = [name for name in (FEATURES, IMAGE, TEXT) if getattr(row, name) is not None]
    taken = [repr(FEATURES)] * bool(described.features) + [repr(IMAGE)] * described.image
    visual, has = " or ".join(taken), " and ".join(map(repr, given)) or "nothing"
    both = route in ("score", "answer")
    if both and not (len(given) == 2 and TEXT in given):
        what = "a question is about an image" if route == "answer" else "an image or video is compared"
        raise InputError(f"{what}; give {visual}, and {TEXT!r}, not {has}")
    if not both and len(given) != 1:
        raise InputError(f"give one of {visual} and {TEXT!r}, not {has}")
    for name in given:
        if name != TEXT and repr(name) not in taken:
            raise InputError(f"the model takes no {name!r} here; give {visual}")


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


def check_text(text: str, limits: Limits) -> None:
    """Refuse a text that is too long, has no word, or is not valid Unicode.

    Raises:
        InputError: it is one of these.
    """
    if len(text) > limits.max_characters:
        raise InputError(f"a text of {len(text):,} characters; at most {limits.max_characters:,} are taken")
    if not is_unicode(text):
        raise InputError("a text with half a character; send valid Unicode")
    if not any(map(str.isalnum, text)):
        raise InputError("a text without a word; give one such as 'a dog on the grass'")
