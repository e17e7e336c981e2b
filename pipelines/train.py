"""`python -m pipelines.train RECIPE [--overrides]`: train a run, on this machine or as a Ray job."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Annotated, Union

import torch
import tyro

from infra.errors import command, unknown
from infra.launch import Resources, fit, ray_session
from infra.paths import home
from infra.registry import RECIPES, TASKS
from infra.tracking import Tracker, tracking_uri
from pipelines.config import Run, from_json, to_json


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run that was interrupted, from its last checkpoint."""

    run_id: tyro.conf.Positional[str]


def tags(run: Run) -> dict[str, str]:
    """Return the tags by which runs are found and compared."""
    text = run.text_aggregator or run.aggregator
    found = {
        "kind": "train",
        "task": run.task.partition("(")[0],
        "dataset": run.data.dataset,
        "recipe": run.recipe,
        "aggregator": run.aggregator,
        "text_aggregator": text,
        "seed": str(run.seed),
        "protocol": run.protocol,
    }
    return found


def start(run: Run) -> str:
    """Train a new run and return its id."""
    uri = tracking_uri(home())
    adapter = TASKS.build(run.task, run)
    with torch.device("meta"):
        adapter.model(pretrained=False)  # a wrong spec ends here, before anything is started
    name = f"{run.recipe} {run.aggregator} seed {run.seed}"
    tracker = Tracker.start(
        run.experiment, uri=uri, home=home(), name=name, tags=tags(run), params=to_json(run)
    )
    tracker.json("run.json", to_json(run))
    tracker.tags({f"data.{name}": value for name, value in adapter.describe().items()})
    return launch(run, tracker)


def resume(run_id: str) -> str:
    """Go on with an interrupted run and return its id."""
    tracker = Tracker.attach(tracking_uri(home()), run_id)
    run = from_json(tracker.read_json("run.json"))
    return launch(run, tracker)


def launch(run: Run, tracker: Tracker) -> str:
    """Train on Ray workers under a tracked run, whose status says how that ended."""
    status = "FAILED"
    try:
        with ray_session():
            resources = Resources.plan(run.workers, cpus=run.cpus)
            fit(
                to_json(run),
                run_id=tracker.run_id,
                tracking_uri=tracker.uri,
                home=home(),
                resources=resources,
            )
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)
    return tracker.run_id


def parse(words: list[str]) -> Run | Resume:
    """Read the command line: a recipe with overrides, or `resume RUN_ID`."""
    names = RECIPES.names()
    if words and not words[0].startswith("-") and words[0] not in (*names, "resume"):
        raise unknown("recipe", words[0], names)
    choices = [Annotated[Resume, tyro.conf.subcommand("resume")]]
    for name in names:
        recipe = RECIPES.get(name)
        about = inspect.getdoc(recipe)
        choices.append(Annotated[Run, tyro.conf.subcommand(name, default=recipe(), description=about)])
    return tyro.cli(Union[tuple(choices)], args=words, prog="python -m pipelines.train", description=__doc__)  # noqa: UP007


@command
def main() -> None:
    """Train, and print where to look."""
    asked = parse(sys.argv[1:])
    run_id = resume(asked.run_id) if isinstance(asked, Resume) else start(asked)
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    metrics = tracker.metrics()
    print(f"run {run_id} finished")
    for name in sorted(metrics):
        if name.startswith(f"{tracker.tag('protocol')}/"):
            print(f"  {name:<24} {metrics[name]:8.2f}")


if __name__ == "__main__":
    main()
