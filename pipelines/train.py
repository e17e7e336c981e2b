"""`python -m pipelines.train RECIPE [--overrides]`: train a run, on this machine or as a Ray job.

`--list` shows the recipes and the published numbers they aim at, `RECIPE --help` its settings, and
`resume RUN_ID` goes on with an interrupted run from its last checkpoint.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass

import tyro

from infra.errors import command, unknown
from infra.paths import home
from infra.registry import RECIPES
from infra.tracking import Tracker, tracking_uri
from pipelines.ensemble import start_ensemble
from pipelines.recipe import Ensemble, published_text
from pipelines.training.runs import resume, start
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run that was interrupted, from its last checkpoint."""

    run_id: tyro.conf.Positional[str]


def parse(words: list[str]) -> Run | Ensemble | Resume:
    """Read the command line: a recipe with overrides, or `resume RUN_ID`."""
    if not words or words[0] in ("--help", "-h", "--list"):
        print(f"{inspect.getdoc(sys.modules[__name__])}\n\n{recipes()}")
        raise SystemExit(0 if words else 2)
    name, *rest = words
    prog = f"python -m pipelines.train {name}"
    if name == "resume":
        return tyro.cli(Resume, args=rest, prog=prog)
    if ":" not in name and name not in RECIPES.names():
        raise unknown("recipe", name, RECIPES.names())
    recipe = RECIPES.get(name)
    default = recipe()
    return tyro.cli(
        type(default), default=default, args=rest, prog=prog, description=inspect.getdoc(recipe) or ""
    )


def recipes() -> str:
    """Return a line for each recipe: its name and the published number it aims at, or else what it is.

    A recipe of another package that cannot be used is named with the reason.
    """
    found = RECIPES.listing()
    width = max(len(listed.name) for listed in found)
    lines = []
    for listed in found:
        about = listed.error
        if not about:
            recipe = RECIPES.get(listed.name)
            made = recipe()
            about = (
                published_text(made.published, made.source)
                or (inspect.getdoc(recipe) or "").partition("\n")[0]
            )
        lines.append(f"{listed.name:<{width}}  {about}")
    return "\n".join(lines)


@command
def main() -> None:
    """Train, and print where to look."""
    asked = parse(sys.argv[1:])
    if isinstance(asked, Resume):
        run_id = resume(asked.run_id)
    else:
        run_id = start_ensemble(asked) if isinstance(asked, Ensemble) else start(asked)
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    metrics = tracker.metrics()
    print(f"run {run_id} finished")
    for name in sorted(metrics):
        if name.startswith(f"{tracker.tag('protocol')}/"):
            print(f"  {name:<24} {metrics[name]:8.2f}")


if __name__ == "__main__":
    main()
