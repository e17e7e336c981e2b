"""A run repeated from its record in MLflow, with what differs from then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.spec import trust_modules
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.infra.tracking.provenance import provenance
from polypool.pipelines.training.checkpoints.best import other_than_trained
from polypool.pipelines.training.prepare import prepare
from polypool.pipelines.training.recording.artifacts import printed
from polypool.tasks.run import Run, from_json

ORIGIN = "rerun_of"
"""The tag of a repeated run that names the original."""


@dataclass(frozen=True, kw_only=True)
class Original:
    """A run as it was recorded, and how today's code, libraries and data differ.

    Attributes:
        run: its settings.
        tracker: of the run.
        differences: a line each.
        unknown: what was not recorded then.
    """

    run: Run
    tracker: Tracker
    differences: tuple[str, ...]
    unknown: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report that precedes the training."""
        lines = [*(self.differences or ("nothing that was recorded differs",))]
        if not scores(self.tracker, self.tracker):
            lines.append("it has no scores of the test split: it failed, or was ended before them")
        if self.unknown:
            lines.append(f"not recorded then: {', '.join(self.unknown)}")
        return lines


def read_original(run_id: str, *, trust: Sequence[str] = ()) -> Original:
    """Read a recorded run and compare it with the code and data at hand.

    Args:
        run_id: of the run.
        trust: modules whose code it may name.

    Raises:
        InputError: no such run, it was not trained, its settings are missing or those of another version, or its data
            or a part is not at hand.
    """
    trust_modules(*trust)
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    if (kind := tracker.tag("kind")) not in ("train", ""):
        raise InputError(f"run {run_id} {other_than_trained(kind)}")
    try:
        run = from_json(tracker.read_json("run.json"), where=f"run.json of run {run_id}")
    except InputError as error:
        if not kind:
            raise InputError(f"run {run_id} {other_than_trained('')}") from error
        raise InputError(
            f"run {run_id} cannot be repeated: its settings, the artifact run.json, were deleted or cannot be "
            f"read ({error}); train its recipe again with the parameters that MLflow shows of it"
        ) from error
    data = prepare(run).describe()
    now = {**provenance(home()), **{f"data.{name}": value for name, value in data.items()}}
    then = {name: tracker.tag(name) for name in now}
    return Original(
        run=run,
        tracker=tracker,
        differences=tuple(_differing(then, now)),
        unknown=tuple(sorted(name for name, value in then.items() if not value and name != "git_dirty")),
    )


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = [name for name in now if name not in ("git_dirty", "mlflow.source.git.commit")]
    lines = [
        f"{name}: then {then[name]}, now {now[name]}" for name in names if then[name] not in ("", now[name])
    ]
    changed = [when for when, tags in (("then", then), ("now", now)) if tags.get("git_dirty") == "true"]
    if changed:
        lines.append(f"files that git tracks differ from the commit: {' and '.join(changed)}")
    return lines


def scores(then: Tracker, now: Tracker) -> list[str]:
    """Return a line for each score of the test split: then and now."""
    protocol = f"{then.tag('protocol')}/"
    old, new = then.metrics(), now.metrics()
    names = [name for name in sorted(old) if name.startswith(protocol) and name in new]
    return [f"{name:<24} then {printed(old[name]):<9} now {printed(new[name])}" for name in names]
