"""Settings of a service, and the requests and responses of its HTTP API, for pydantic and OpenAPI.

Columns are those in `polypool.pipelines.models.table_rows`.
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
"""A field without an option."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests.

    Attributes:
        max_batch: batch size in rows, of one or several requests.
        max_ongoing: concurrent requests per replica.
        max_queued: length of the request queue; more get 503.
        max_body_mib: size of a request in MiB; larger ones get 413.
        max_rows: rows per request.
        max_elements: elements of a set of features, such as regions or frames.
        max_characters: characters of a text.
        max_k: results of a search.
        patience: timeout of an answer in seconds; then 503.
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
    """Replicas of the model on Ray Serve.

    Attributes:
        replicas: number of processes with the model, on the cluster of RAY_ADDRESS or a private Ray; 0 serves from this
            process, without Ray.
        cpus: cores per replica.
        gpus: GPUs per replica, or a fraction; 0 for the CPU.
    """

    replicas: Annotated[int, at_least(0)] = 0
    cpus: Annotated[float, above(0)] = 1.0
    gpus: Annotated[float, at_least(0)] = 0.0

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a process with the model.

    Attributes:
        source: a run, by its id or a prefix of it, its name, or `latest`, or the folder or URL of an export.
        split: split to search (default: test, if the corpus exists).
        search: search the run's corpus.
        page: serve the page.
        images: accept images for a model of features, extracted by the backbone of its store.
        index: exact, or faiss for many single vectors.
        other_data: search the run's corpus and features even if they changed since training.
        trust: trusted module whose code the run or its store may name as module:Name; repeatable.
        replicas: replicas on Ray Serve.
        limits: limits of requests.
        token: SHA-256 of the required token, in hexadecimal digits; empty for none.
        local: answer only to host names of this machine.
        home: folder of relative paths; empty for the replica's own.
        tracking: URI of MLflow; empty for the replica's own.
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
class Address:
    """Address of a service.

    Attributes:
        host: host to listen on; other than this machine needs a token, or --open.
        port: port; 0 for a free one.
        route: prefix of all endpoints, for several services on a cluster.
        name: name of the service on the cluster.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    route: str = "/"
    name: str = "polypool"

    @property
    def address(self) -> str:
        """The base URL of the service."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{self.route.rstrip('/')}"

    def listen(self) -> tuple[socket.socket, Address]:
        """Return a listening socket, and the address with its port.

        Raises:
            InputError: the port is taken, or the host is not this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=socket.SOMAXCONN)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot listen on port {self.port} of {self.host}: {error}; choose another with --port"
            ) from error
        return listening, replace(self, port=listening.getsockname()[1])


Route = Literal["embed", "score", "answer", "search"]
"""Endpoints of a model."""


class Row(BaseModel):
    """An input: an image or video (as features or as an image file), a text, or both."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    features: list[list[float]] | None = Field(None, description="N vectors of the model's input width")
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
    """A vector; vectors of a set; or mean and log-variance of a distribution."""

    embedding: list[float] | list[list[float]]


class Score(BaseModel):
    """The similarity of image or video and text; higher is more similar."""

    score: float


class Answer(BaseModel):
    """The most probable answer to a question, and its probability."""

    answer: str
    probability: float


class Hit(BaseModel):
    """A result: an item with its first caption, for a text; or a caption, for an image or video."""

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
    """An error message."""

    error: str


class ModelInfo(BaseModel):
    """Description of the model, the response to `GET /`.

    `features` is the width of input vectors, 0 if the model reads none; `image` whether it accepts images; `shape` the
    shape of an embedding, (D) or (K, D), with K = -1 for sets of varying size; `digests` has the training data's
    digests, if it exists here.
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
