"""Description of a run in MLflow: experiment, name, tags, parameters, text and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polypool.infra.tracking import Source, Tracker
from polypool.infra.tracking.provenance import command_line
from polypool.infra.tracking.tracker import COMMAND, NOTE
from polypool.tasks.run import Run, modules, to_json, to_params

COLLAPSED = "collapsed"
"""The tag of a run that has collapsed, with step and symptoms."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A run before its first log entry; plain data that can be stored.

    Attributes:
        experiment: its name.
        name: of the run in MLflow.
        tags: by which it is found.
        params: its settings, nested.
        settings: the run as `polypool.tasks.run.from_json` reads it.
        words: a description in a sentence or two.
        sources: the data that it reads.
    """

    experiment: str
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    settings: Mapping[str, Any]
    words: str = ""
    sources: tuple[Source, ...] = ()

    @classmethod
    def of(cls, run: Run, sources: Sequence[Source] = ()) -> Described:
        """Describe a run with its data."""
        text = f", text {run.text_aggregator}" if run.text_aggregator not in ("", run.aggregator) else ""
        task = f" {run.task}" if run.jointly else ""
        return cls(
            experiment=run.experiment,
            name=f"{run.recipe}{task} {run.aggregator}{text} seed {run.seed}".strip(),
            tags=tags(run),
            params=to_params(run),
            settings=to_json(run),
            words=words(run),
            sources=tuple(sources),
        )

    def start(self, uri: str, home: Path, *, more_tags: Mapping[str, str] | None = None) -> Tracker:
        """Create the run in MLflow; see `Tracker.start`."""
        tags = {COMMAND: command_line(), **self.tags, **(more_tags or {})}
        by = f"\n\n    {tags[COMMAND]}" if tags[COMMAND] else ""
        tracker = Tracker.start(
            self.experiment,
            uri=uri,
            home=home,
            name=self.name,
            tags={NOTE: self.words + by, **tags},
            params=self.params,
        )
        tracker.inputs(self.sources)
        return tracker


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


def words(run: Run) -> str:
    """Return a description of a run; MLflow's table shows its beginning, the run's page all as Markdown."""
    return f"{_read(run)} {_trained(run)}"


def _read(run: Run) -> str:
    if run.members:
        each = [f"{name} on {of.data.dataset} ({of.data.corpus})" for name, of in run.members.items()]
        return f"Several tasks in one model, {run.task}: {'; '.join(each)}. {run.aggregator} pools."
    data, text = run.data, run.text_aggregator or run.aggregator
    visual = run.visual + (f" of {data.features}" if data.features else "")
    texts = run.text + (f" of {data.texts}" if data.texts else "")
    whole = f", put together by {run.model}" if run.model else ""
    with_others = f", trained together with other tasks, {run.jointly}" if run.jointly else ""
    return (
        f"{run.task} on {data.dataset}: {run.aggregator} pools what {visual} gives, and {text} what {texts} does"
        f"{whole}{with_others}. The corpus is {data.corpus}."
    )


def _trained(run: Run) -> str:
    optim, more = run.optim, "".join(f" + {of}" for of in run.regularisers)
    scored = f"its test split is scored by {run.protocol}."
    if not optim.epochs:
        return f"Nothing is trained; {scored}"
    goal = "The loss of each task" if run.members else f"{run.objective}{more}"
    start = f", from the weights of run {run.init}" if run.init else ""
    return (
        f"{goal} is minimised by {optim.optimiser} in {optim.epochs} epochs of batches of {optim.batch}{start}, seed "
        f"{run.seed}; the epoch that is best on val is kept, and {scored}"
    )
