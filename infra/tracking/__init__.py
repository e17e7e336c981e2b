"""Runs as MLflow records them: started, continued, found."""

from infra.tracking.location import tracking_uri, ui_command
from infra.tracking.tracker import RunRecord, Tracker, find_runs

__all__ = ["RunRecord", "Tracker", "find_runs", "tracking_uri", "ui_command"]
