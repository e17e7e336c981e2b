"""polypool from Python, and as a command: `polypool train coco_mini` is `python -m pipelines.train coco_mini`.

    import polypool as pp

    pooled = pp.aggregator("gpo", 1024)(x_BND, mask_BN)    # any part by its spec
    run = pp.train("coco_mini", aggregator="gpo", seed=0)  # on Ray, recorded in MLflow
    model = pp.load(run.id)                                # or the folder that `polypool export` wrote
    model.scores(features, captions)
    model.search("a dog on the grass", k=5)
    mteb.evaluate(pp.mteb_model(run.id), tasks)            # tasks of mteb, images or videos and texts
    pp.runs("polypool")                                    # pandas DataFrames
    pp.compare("polypool")

Everything is imported when it is first used, so that `import polypool` costs nothing.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from aggregators.base import Aggregator
    from pipelines.exporting.mteb_model import mteb_model
    from pipelines.models import TrainedModel
    from tasks.datasets.corpus import Item, write_corpus
    from tasks.run import Data, Optim, Run

__all__ = [
    "Data",
    "Item",
    "Optim",
    "Run",
    "TrainedRun",
    "aggregator",
    "compare",
    "load",
    "mteb_model",
    "part",
    "recipe",
    "runs",
    "train",
    "write_corpus",
]

_ELSEWHERE = {
    "Data": "tasks.run",
    "Item": "tasks.datasets.corpus",
    "Optim": "tasks.run",
    "Run": "tasks.run",
    "mteb_model": "pipelines.exporting.mteb_model",
    "write_corpus": "tasks.datasets.corpus",
}
"""Names of this module that live in another one."""


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'polypool' has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run that `train` has finished.

    Attributes:
        id: of the run in MLflow; `load` and every verb take it.
        metrics: the last value of each, such as `coco-5k/rsum`.
    """

    id: str
    metrics: Mapping[str, float]


def aggregator(spec: str, dim: int) -> Aggregator:
    """Return a new aggregator: `aggregator("kmax(k=5)", 1024)(x_BND, mask_BN).vectors` is `(B, D)`.

    Args:
        spec: a name with or without parameters, as after `--aggregator`, or `module:Name`.
        dim: width D of the elements.

    Raises:
        InputError: no such aggregator or parameter, or a width that no element has.
    """
    from infra.errors import InputError

    if not isinstance(dim, int) or dim < 1:
        raise InputError(f"the width of the elements must be a whole number of at least 1, not {dim!r}")
    return part("aggregator", spec, dim)


def part(kind: str, spec: str, *args: Any) -> nn.Module:
    """Return a new part of any kind: `part("similarity", "smooth_chamfer(alpha=16)")`.

    Args:
        kind: as `polypool check --list` names it, such as `encoder`, `objective` or `augmentation`.
        spec: a name with or without parameters, or `module:Name`.
        args: what a part of this kind takes first: an aggregator the width, an encoder its assets.

    Raises:
        InputError: no such kind, part or parameter.
    """
    from infra.errors import unknown
    from infra.fields import check_value
    from infra.registry import KINDS
    from infra.trust import vouch

    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    check_value(spec, str, f"the spec of a part of kind {kind!r}")
    vouch(spec)
    return KINDS[kind].build(spec, *args)


def recipe(name: str, **settings: Any) -> Run:
    """Return the run of a recipe with some settings changed.

    Args:
        name: of the recipe, as `polypool train --list` shows it.
        settings: fields of `Run`; a dict changes some fields of `data` or `optim`: `optim={"epochs": 10}`.

    Raises:
        InputError: no such recipe or setting, a value that a run refuses, or the recipe of an ensemble.
    """
    from infra.errors import InputError
    from infra.fields import check_value
    from infra.registry import RECIPES
    from infra.trust import vouch
    from pipelines.recipe import derive
    from tasks.run import Run

    check_value(name, str, "the name of a recipe")
    vouch(name)
    run = RECIPES.get(name)()
    if not isinstance(run, Run):
        raise InputError(
            f"recipe {name!r} is an ensemble; train one of its members: {', '.join(run.members)}"
        )
    return derive(run, **settings)


def train(run: str | Run, **settings: Any) -> TrainedRun:
    """Train a recipe, or a `Run` of one's own, on Ray workers, recorded in MLflow; return when it has ended.

    Args:
        run: name of a recipe, or a `Run`.
        settings: changes of a recipe; see `recipe`.

    Raises:
        InputError: what cannot be used, before anything is started.
        RuntimeError: the workers failed; the message says how to go on.
    """
    from infra.paths import home
    from infra.tracking import Tracker, tracking_uri
    from pipelines.recipe import derive
    from pipelines.training.runs import start
    from tasks.run import Run

    run = derive(run, **settings) if isinstance(run, Run) else recipe(run, **settings)
    tracker = Tracker.attach(tracking_uri(home()), start(run), running=False)
    return TrainedRun(id=tracker.run_id, metrics=tracker.metrics())


def load(source: str | Path, *, trust: Sequence[str] = ()) -> TrainedModel:
    """Return a trained model: of a run, by its id, or from the folder that `polypool export` wrote.

    Args:
        source: the run or the folder.
        trust: modules whose code it may name as `module:Name`, such as `("my_package.parts",)`; their code runs.

    Raises:
        InputError: no such run or folder, no model in it, or one that names a module which is not trusted.
    """
    from infra.errors import InputError
    from pipelines.models import load as load_model

    if not isinstance(source, str | Path):
        raise InputError(f"a trained model is named by the id of its run or by its folder, not {source!r}")
    if isinstance(trust, str):
        raise InputError(f"trust takes several modules: trust=({trust!r},)")
    return load_model(source, trust=trust)


def runs(experiment: str = "polypool", *, finished: bool = True) -> pd.DataFrame:
    """Return the runs of an experiment, latest first: a row each, by its id; tags, parameters and metrics as columns.

    Args:
        experiment: its name in MLflow.
        finished: only those that ended well.

    Raises:
        InputError: the store does not answer, or has no such experiment.
    """
    import pandas as pd

    from infra.paths import home
    from infra.tracking import find_runs, tracking_uri

    records = find_runs(tracking_uri(home()), experiment, finished=finished)
    rows = [
        {"name": run.name, "status": run.status, **run.tags, **run.params, **run.metrics} for run in records
    ]
    return pd.DataFrame(rows, index=pd.Index([run.run_id for run in records], name="run_id"))


def compare(experiment: str = "polypool", *, metric: str = "", protocol: str = "") -> pd.DataFrame:
    """Return a row for each aggregator of each task, data set and protocol: mean, deviation, differences and costs.

    Args:
        experiment: its name in MLflow.
        metric: what orders the rows; each task's own where empty.
        protocol: the only one shown; all where empty.

    Raises:
        InputError: nothing to compare, or no such metric or protocol.
    """
    from functools import partial

    import pandas as pd

    from infra.paths import home
    from infra.tracking import Artifacts, tracking_uri
    from pipelines.comparison import comparison as comparing
    from pipelines.comparison.results import columns, results
    from pipelines.comparison.runs.per_query import read_queries

    uri = tracking_uri(home())
    comparison = comparing.compare(uri, experiment, metric=metric, protocol=protocol)
    comparison = comparing.judged(comparison, partial(read_queries, Artifacts(uri)))
    return pd.DataFrame(columns([of for of in results(comparison.groups) if of.decides]))


def main() -> None:
    """Run a verb: `polypool VERB ...` is `python -m pipelines.VERB ...`."""
    from infra.process.stopping import end_at_once, listen

    listen(end_at_once)
    known = verbs()
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        width = max(map(len, known))
        print("polypool VERB ...; `polypool VERB --help` says more\n")
        print("\n".join(f"  {verb:<{width}}  {about}" for verb, about in known.items()))
        sys.exit(0 if sys.argv[1:] else 2)
    if name not in known:
        from infra.errors import unknown

        print(f"error: {unknown('verb', name, known)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"polypool {name}", *words]
    importlib.import_module(f"pipelines.{name}").main()


def verbs() -> dict[str, str]:
    """Return the verbs, and what each does, from their files."""
    import pipelines

    found = {}
    for file in sorted(Path(pipelines.__file__).parent.glob("*.py")):
        source = file.read_text()
        if "def main()" in source:
            about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
            found[file.stem] = about.rpartition("`: ")[2]
    return found


if __name__ == "__main__":
    main()
