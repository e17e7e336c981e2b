"""Tracking of runs in MLflow: starting, continuing and finding runs, logging, and models."""

from polypool.infra.tracking.experiment import to_see
from polypool.infra.tracking.location import tracking_uri
from polypool.infra.tracking.outbox import Outbox
from polypool.infra.tracking.run_records import Artifacts, RunRecord, Source, find_runs, resolve_run
from polypool.infra.tracking.tracker import Tracker

__all__ = [
    "Artifacts",
    "Outbox",
    "RunRecord",
    "Source",
    "Tracker",
    "find_runs",
    "resolve_run",
    "to_see",
    "tracking_uri",
]
