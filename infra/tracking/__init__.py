"""MLflow: runs are started, continued and found here, models kept; `pipelines.exporting` alone knows it, too."""

from infra.tracking.artifacts import Artifacts
from infra.tracking.finding import find_runs
from infra.tracking.location import tracking_uri, ui_command
from infra.tracking.outbox import Outbox
from infra.tracking.record import RunRecord, Source
from infra.tracking.tracker import Tracker

__all__ = ["Artifacts", "Outbox", "RunRecord", "Source", "Tracker", "find_runs", "tracking_uri", "ui_command"]
