"""What goes in and comes out over HTTP, as pydantic checks it and OpenAPI shows it.

Columns have the names of `pipelines.exporting.columns`, and mean what they mean where MLflow serves a model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Route = Literal["embed", "score", "answer", "search"]
"""What may be asked of a model, each at the address of its name."""


class Row(BaseModel):
    """One thing that is asked: an image or video, as features or as an image's file, a text, or both."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    features: list[list[float]] | None = Field(
        None, description="N vectors of the width that the model reads"
    )
    image: str | None = Field(None, description="the file of an image, in base64")
    text: str | None = Field(None, description="a caption to embed or search by, or a question")


class Rows(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rows: list[Row] = Field(min_length=1)


class SearchRows(Rows):
    """The body of a search."""

    k: int = Field(10, ge=1, description="hits of each row")


class Embedding(BaseModel):
    """A vector; several of a model of sets; mean and log-variance of one of distributions."""

    embedding: list[float] | list[list[float]]


class Score(BaseModel):
    """How alike image or video and text are; higher is more alike."""

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


class Embeddings(BaseModel):
    """Answers to `/embed`, a row for each row."""

    rows: list[Embedding]


class Scores(BaseModel):
    """Answers to `/score`, a row for each row."""

    rows: list[Score]


class Answers(BaseModel):
    """Answers to `/answer`, a row for each row."""

    rows: list[Answer]


class Found(BaseModel):
    """Answers to `/search`, a row for each row."""

    rows: list[Hits]


class Failure(BaseModel):
    """Why there is no answer."""

    error: str


class Health(BaseModel):
    """That the model answers."""

    status: Literal["ok"] = "ok"


class Described(BaseModel):
    """What is served: the answer to `/`.

    `routes` are what it can be asked. `features` is the width of vectors that are taken, 0 where none are, and `image`
    says whether images are. `shape` is that of an embedding, by its axes: a vector, or so many vectors, -1 where sets
    differ in size; `digests` are those of the data that it was trained on, where that is at hand.
    """

    source: str
    recipe: str
    task: str
    modality: str
    aggregator: str
    similarity: str
    metric: str
    protocol: str
    routes: list[Route]
    features: int
    image: bool
    shape: list[int]
    split: str
    items: int
    digests: dict[str, str]
    limits: dict[str, float]
