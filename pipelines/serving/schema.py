"""Settings of a service, and the requests and answers of its HTTP API, which pydantic checks and OpenAPI shows.

Columns have the names and meanings of `polypool.pipelines.models.table_rows`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import Annotated, Generic, Literal, TypeVar

import tyro
from pydantic import BaseModel, ConfigDict, Field

from polypool.infra.errors import InputError
from polypool.infra.fields import above, at_least, validate
from polypool.infra.process.command import NamedRun, Repeated

Positive = Annotated[int, at_least(1)]
T = TypeVar("T")
Derived = Annotated[T, tyro.conf.Fixed, tyro.conf.Suppress]
"""A field that no option sets."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may be requested at once; what exceeds it is refused with a message.

    Attributes:
        max_batch: rows, of one request or of several, that go through the model together.
        max_ongoing: requests that a replica has at once.
        max_queued: requests that wait; more are refused with 503.
        max_body_mib: MiB of a request; larger ones are refused with 413.
        max_rows: rows of a request.
        max_elements: elements of a set of features, such as regions or frames.
        max_characters: characters of a text.
        max_k: results of a search.
        patience: seconds that an answer may take; then it is 503.
    """

    max_batch: Positive = 32
    max_ongoing: Positive = 64
    max_queued: Positive = 256
    max_body_mib: Annotated[float, above(0)] = 16.0
    max_rows: Positive = 256
    max_elements: Positive = 1024
    max_characters: Positive = 1000
    max_k: Positive = 100
    patience: Annotated[float, above(0)] = 60.0

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Processes that have the model, on Ray Serve.

    Attributes:
        replicas: how many, each with the whole model, on the cluster that RAY_ADDRESS names or a Ray of its own; 0
            serves from this process, without Ray.
        cpus: cores of each replica.
        gpus: GPUs of each replica, or a part of one; without, it computes on its cores.
    """

    replicas: Annotated[int, at_least(0)] = 0
    cpus: Annotated[float, above(0)] = 1.0
    gpus: Annotated[float, at_least(0)] = 0.0

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that a process with the model needs to know.

    Attributes:
        source: a run, by its id, a beginning of it, its name or `latest`, or the folder or URL that `export` made of
            one.
        split: the split that is searched; where not given, test, if the corpus is at hand.
        search: search the run's corpus.
        page: serve the page.
        images: take images for a model that reads features, which the backbone of its store then computes.
        index: how a split is searched, as in `search`.
        other_data: search the run's corpus and features though they have changed since it was trained.
        trust: a module whose code the run or its store may name, as module:Name; once for each.
        replicas: on Ray Serve.
        limits: of requests.
        token: SHA-256 of the required token, in hexadecimal digits; empty for none.
        local: whether only this machine is to reach it, so that it answers to no other host name.
        home: where relative paths start; empty for the replica's own.
        tracking: address of MLflow; empty for the replica's own.
    """

    source: NamedRun = ""
    split: str | None = None
    search: bool = True
    page: bool = True
    images: bool = True
    index: Literal["exact", "faiss"] = "exact"
    other_data: bool = False
    trust: Repeated = ()
    replicas: tyro.conf.OmitArgPrefixes[Replicas] = field(default_factory=Replicas)
    limits: tyro.conf.OmitArgPrefixes[Limits] = field(default_factory=Limits)
    token: Derived[str] = ""
    local: Derived[bool] = True
    home: Derived[str] = ""
    tracking: Derived[str] = ""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a service is reached.

    Attributes:
        host: address to listen on; any but this machine's own needs a token, or --open.
        port: its port; 0 for a free one.
        route: prefix of all addresses, where a cluster has several services.
        name: the service's name on the cluster.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    route: str = "/"
    name: str = "polypool"

    @property
    def address(self) -> str:
        """The URL with which the service's addresses begin."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{self.route.rstrip('/')}"

    def listen(self) -> tuple[socket.socket, Place]:
        """Return a socket that listens here, and the place with its port.

        Raises:
            InputError: the port is taken, or the address is not this machine's.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=socket.SOMAXCONN)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {self.port} of {self.host} cannot be had: {error}; choose another with --port"
            ) from error
        return listening, replace(self, port=listening.getsockname()[1])


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
