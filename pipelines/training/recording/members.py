"""The runs of tasks that were trained together: each a run of its own in MLflow, under the joint one."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.fields import read_record
from infra.paths import home
from infra.tracking import Outbox, Tracker
from infra.tracking.journal import DESCRIBED, MEMBERS
from infra.tracking.outbox import CLOSE_SECONDS
from infra.tracking.tracker import PARENT
from pipelines.training.recording.described import Described

JOINT, MEMBER = "joint", "member"
"""Tags of such a run: the joint run, and what the task is called there."""


def send_members(folder: Path, joint: Tracker) -> str:
    """Send what was logged of each task; what is there already is not sent again.

    Args:
        folder: of the joint run's log.
        joint: the run, all of which MLflow has.

    Returns:
        what kept MLflow from taking all; empty where it has all.
    """
    for own in sorted((folder / MEMBERS).glob("*")):
        try:
            described = read_record(Described, own / DESCRIBED, what="what a run is started by")
            tracker = _run(joint, own.name, described)
        except InputError as error:
            return str(error)
        outbox = Outbox(own, lambda tracker=tracker: tracker)
        outbox.end("FINISHED")
        outbox.close(CLOSE_SECONDS)
        if outbox.unsent or outbox.refused:
            return outbox.why or f"{outbox.refused:,} entries of {own.name} were refused"
    return ""


def _run(joint: Tracker, name: str, described: Described) -> Tracker:
    """Return the run of a task, which is begun where it is not there yet."""
    tags = {JOINT: joint.run_id, MEMBER: name}
    if found := joint.found_by(tags):
        return found
    run = described.start(joint.uri, home(), more_tags=tags | {PARENT: joint.run_id})
    run.json("run.json", described.settings)
    return run
