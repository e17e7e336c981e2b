"""MLflow, and the only package that imports it: runs are started, continued and found here."""

from infra.tracking.finding import RunRecord, find_runs
from infra.tracking.location import tracking_uri, ui_command
from infra.tracking.outbox import Outbox
from infra.tracking.tracker import Tracker

__all__ = ["Outbox", "RunRecord", "Tracker", "find_runs", "tracking_uri", "ui_command"]
