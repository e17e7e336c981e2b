"""What a run is recorded as: where, under which name, with which tags and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.tracking import Tracker
from tasks.run import Run, modules, to_json, to_params

COLLAPSED = "collapsed"
"""The tag of a run whose model tells nothing apart: at which step what was seen."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A run before anything is logged of it; plain data, so that it can be kept and read back.

    Attributes:
        experiment: its name.
        name: what people call the run.
        tags: what it is found by.
        params: its settings, nested.
        settings: the run as `tasks.run.from_json` reads it.
    """

    experiment: str
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> Described:
        """Describe a run."""
        return cls(
            experiment=run.experiment,
            name=f"{run.recipe}{f' {run.task}' if run.jointly else ''} {run.aggregator} seed {run.seed}",
            tags=tags(run),
            params=to_params(run),
            settings=to_json(run),
        )

    def start(self, uri: str, home: Path, *, more_tags: Mapping[str, str] | None = None) -> Tracker:
        """Create the run in MLflow; see `Tracker.start`."""
        tags = {**self.tags, **(more_tags or {})}
        return Tracker.start(
            self.experiment, uri=uri, home=home, name=self.name, tags=tags, params=self.params
        )


def tags(run: Run) -> dict[str, str]:
    """Return the tags by which runs are found and compared."""
    return {
        "kind": "train",
        "task": run.task.partition("(")[0],
        "dataset": run.data.dataset,
        "recipe": run.recipe,
        "aggregator": run.aggregator,
        "text_aggregator": run.text_aggregator or run.aggregator,
        "model": run.model.partition("(")[0],
        "seed": str(run.seed),
        "protocol": run.protocol,
        **({"trust": ",".join(named)} if (named := modules(run)) else {}),
    }
