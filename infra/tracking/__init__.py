"""MLflow, and the only package that imports it: runs are started, continued and found here."""

from infra.tracking.artifacts import Artifacts
from infra.tracking.finding import find_runs
from infra.tracking.location import tracking_uri, ui_command
from infra.tracking.outbox import Outbox
from infra.tracking.record import RunRecord, Source
from infra.tracking.tracker import Tracker

__all__ = ["Artifacts", "Outbox", "RunRecord", "Source", "Tracker", "find_runs", "tracking_uri", "ui_command"]
