"""A run as it is read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
