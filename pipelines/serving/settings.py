"""What is served, how, and how much of it may be asked: plain records, which travel to every replica as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from infra.errors import InputError
from infra.fields import NOT_EMPTY, above, at_least, validate
from pipelines.searching import Method

TOKEN = "POLYPOOL_SERVE_TOKEN"
"""The environment variable that has the token."""
Positive = Annotated[int, at_least(1)]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may be asked at once. Whoever asks for more is refused, and told so."""

    max_batch: Positive = 32
    """Rows, of one request or of several, that go through the model together."""
    batch_wait_ms: Annotated[float, at_least(0)] = 5.0
    """Milliseconds that a row waits for others to go with."""
    max_ongoing: Positive = 64
    """Requests that a replica has at once."""
    max_queued: Positive = 256
    """Requests that wait until a replica takes them; more are refused with 503."""
    max_body_mib: Annotated[float, above(0)] = 16.0
    """MiB of a request; larger ones are refused with 413."""
    max_bodies_mib: Annotated[float, above(0)] = 256.0
    """MiB of all requests that are there at once; what would be more is refused with 503."""
    max_rows: Positive = 256
    """Rows of a request."""
    max_elements: Positive = 1024
    """Elements of a set of features, such as regions or frames."""
    max_characters: Positive = 1000
    """Characters of a text."""
    max_k: Positive = 100
    """Hits of a search."""
    patience: Annotated[float, above(0)] = 60.0
    """Seconds that an answer may take; then it is 503."""

    def __post_init__(self) -> None:
        validate(self)
        if self.max_bodies_mib < self.max_body_mib:
            raise InputError(
                f"--max-bodies-mib {self.max_bodies_mib:g} is less than one request may bring: "
                f"--max-body-mib {self.max_body_mib:g}"
            )


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The processes that have the model."""

    replicas: Positive = 1
    """How many there are; each has the whole model, and a gallery of its own."""
    cpus: Annotated[float, above(0)] = 1.0
    """Cores of each."""
    gpus: Annotated[float, at_least(0)] = 0.0
    """GPUs of each, or a part of one; without, a replica computes on its cores."""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that a replica has to know.

    Attributes:
        source: the id of a run, or the absolute path or URL of an exported folder.
        split: whose items are searched; None for the test split where the corpus is at hand.
        search: whether there is search.
        images: whether images are taken by a model that reads features, which are made of each as those of the run.
        index: how; see `pipelines.searching.galleries.make_gallery`.
        trust: modules that the run may name.
        replicas: how many have the model, and with what.
        limits: of what is asked.
        token: SHA-256 of the token that is asked for, in hexadecimal digits; empty for none.
        local: whether only this machine is to reach it, so that it answers to no other name.
        home: where relative paths start; empty for the replica's own.
        tracking: address of MLflow; empty for the replica's own.
    """

    source: Annotated[str, NOT_EMPTY]
    split: str | None = None
    search: bool = True
    images: bool = True
    index: Method = "auto"
    trust: tuple[str, ...] = ()
    replicas: Replicas = field(default_factory=Replicas)
    limits: Limits = field(default_factory=Limits)
    token: str = ""
    local: bool = True
    home: str = ""
    tracking: str = ""
