"""A run as it is read back, and what a run reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as it is recorded.

    Times are seconds since 1970; metrics are the last ones logged; `artifacts` is the URI of the folder of its files.
    """

    run_id: str
    name: str
    status: str
    started: float
    ended: float | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    artifacts: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data that a run reads: one of MLflow's inputs of a run, by which runs are filtered.

    MLflow takes a name with a digest once a run, so that what a run reads for two ends has two names.

    Attributes:
        name: what people call it.
        digest: names its content, such as a SHA-256.
        place: the folder or URL that it is read from, as the run's settings have it.
        context: what it is read for: `train`, `val` or `test`, or what it has of all of them, such as `features`.
        profile: what is counted in it, such as `{"images": 1000}`.
    """

    name: str
    digest: str
    place: str
    context: str
    profile: Mapping[str, int] = field(default_factory=dict)
