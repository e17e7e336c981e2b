"""MLflow: runs are started, continued and found here, models kept; `pipelines.exporting` alone knows it, too."""

from infra.tracking.artifacts import Artifacts
from infra.tracking.experiment import to_see
from infra.tracking.finding import find_runs
from infra.tracking.location import tracking_uri
from infra.tracking.outbox import Outbox
from infra.tracking.record import RunRecord, Source
from infra.tracking.tracker import Tracker

__all__ = ["Artifacts", "Outbox", "RunRecord", "Source", "Tracker", "find_runs", "to_see", "tracking_uri"]
