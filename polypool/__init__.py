"""polypool from Python; `polypool VERB` is its command line.

    import polypool as pp

    pooled = pp.aggregator("gpo", 1024)(x_BND, mask_BN)    # any part by its spec
    corpus = pp.ingest("table", file="captions.csv", out="data/mine")
    store = pp.extract(corpus, backbone="cells", out="data/mine/cells")
    run = pp.train("image_text", corpus=corpus, features=store)
    run = pp.train("coco_mini", aggregator="gpo", seed=0)  # recorded in MLflow
    model = pp.load(run.id)                                # or the folder that `polypool export` wrote
    pp.export(run.id, "hf://user/name")                    # a model card and weights on the Hugging Face hub
    model.scores(features, captions)
    model.search("a dog on the grass", k=5)
    mteb.evaluate(pp.mteb_model(run.id), tasks)            # tasks of mteb, images or videos and texts
    pp.runs("polypool")                                    # pandas DataFrames
    pp.compare("polypool")

Functions import their dependencies when called, so that `import polypool` and `polypool --help` are fast.
Aggregators, similarities and objectives need only torch and numpy.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import InputError, unknown
from polypool.infra.extras import needed

if TYPE_CHECKING:
    import pandas as pd

    from polypool.aggregators.aggregator import Aggregator
    from polypool.pipelines.models.mteb import mteb_model
    from polypool.pipelines.models.trained import TrainedModel
    from polypool.tasks.datasets.corpus import Item, write_corpus
    from polypool.tasks.inputs.other_data import OtherData
    from polypool.tasks.run import Data, Optim, Run


__all__ = [
    "Data",
    "Item",
    "Optim",
    "OtherData",
    "Run",
    "TrainedRun",
    "aggregator",
    "compare",
    "export",
    "extract",
    "ingest",
    "load",
    "mteb_model",
    "part",
    "recipe",
    "runs",
    "train",
    "write_corpus",
]

_ELSEWHERE = {
    "Data": "polypool.tasks.run",
    "Item": "polypool.tasks.datasets.corpus",
    "Optim": "polypool.tasks.run",
    "OtherData": "polypool.tasks.inputs.other_data",
    "Run": "polypool.tasks.run",
    "mteb_model": "polypool.pipelines.models.mteb",
    "write_corpus": "polypool.tasks.datasets.corpus",
}
"""Names imported on first use, and their modules."""


@needed()
def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'polypool' has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run: its id in MLflow, accepted by `load` and by every verb that takes a run, and its last metrics."""

    id: str
    metrics: Mapping[str, float]


def aggregator(spec: str, dim: int) -> Aggregator:
    """Return a new aggregator of sets of width `dim`: `aggregator("kmax(k=5)", 1024)(x_BND, mask_BN).vectors`.

    Raises:
        InputError: an unknown aggregator or parameter, or a width below 1.
    """
    if not isinstance(dim, int) or dim < 1:
        raise InputError(f"the width of the elements must be a whole number of at least 1, not {dim!r}")
    return part("aggregator", spec, dim)


@needed()
def part(kind: str, spec: str, *args: Any) -> Any:
    """Return a new part of any kind: `part("similarity", "smooth_chamfer(alpha=16)")`.

    Args:
        kind: as in `polypool check --list`, such as `encoder`, `objective` or `augmentation`.
        spec: a name with or without parameters, or `module:Name`.
        args: positional arguments of the part: the width of an aggregator, the assets of an encoder.

    Raises:
        InputError: an unknown kind, part or parameter.
    """
    from polypool.infra.fields import check_value
    from polypool.infra.registry import KINDS
    from polypool.infra.spec import trust_specs

    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    check_value(spec, str, f"the spec of a part of kind {kind!r}")
    trust_specs(spec)
    return KINDS[kind].build(spec, *args)


@needed()
def ingest(form: str, *, out: str | Path, **options: Any) -> Path:
    """Read annotations into a corpus, or features into a store, as `polypool ingest FORM` does, and return `out`.

    Args:
        form: of the files, such as `table`, `karpathy`, `vqa2`, `hdf5` or `arrays`; or `module:Name` of a reader.
        out: folder of the corpus or the store.
        options: of the form, as `polypool ingest FORM --help` lists them, with underscores: `file="captions.csv"`.

    Raises:
        InputError: an unknown form or option, or unreadable files.
    """
    from polypool.infra.process.command import call_verb
    from polypool.pipelines.data.ingestion import subcommands

    forms = subcommands([form])
    if form not in forms:
        raise unknown("form", form, forms)
    call_verb(forms[form], {"out": out, **options}, name=f"ingest {form}")
    return Path(out)


@needed()
def extract(corpus: str | Path, *, out: str | Path, **options: Any) -> Path:
    """Extract the features of a corpus into a store, as `polypool extract` does, and return `out`.

    Args:
        corpus: folder of the corpus.
        out: folder of the store.
        options: of `polypool extract --help`, with underscores: `backbone="dinov2(cls=True)"`, `video=True`.

    Raises:
        InputError: an unknown option, or an error of `polypool extract`.
    """
    from polypool.infra.process.command import call_verb
    from polypool.pipelines.commands.extract import extract as verb

    call_verb(verb, {"corpus": corpus, "out": out, **options}, name="extract")
    return Path(out)


@needed()
def recipe(name: str, **settings: Any) -> Run:
    """Return the run of a recipe with some settings changed.

    Args:
        name: a recipe of `polypool train --list`.
        settings: fields of `Run`; a dict changes some fields of `data` or `optim`: `optim={"epochs": 10}`. Also
            `corpus`, `features` and `texts`, whose relative paths start at the current folder.

    Raises:
        InputError: an unknown recipe or setting, a value out of range, or the recipe of an ensemble.
    """
    from polypool.infra.fields import check_value
    from polypool.infra.paths import here
    from polypool.infra.spec import trust_modules, trust_specs
    from polypool.pipelines.recipes.load import derive, named_run
    from polypool.tasks.run import located, modules

    check_value(name, str, "the name of a recipe")
    trust_specs(name)
    run = derive(named_run(name), **settings)
    trust_modules(*modules(run))
    return located(run, here)


@needed()
def train(run: str | Run, **settings: Any) -> TrainedRun:
    """Train a recipe or a `Run`, recorded in MLflow, and wait for its end.

    Args:
        run: name of a recipe, or a `Run`.
        settings: changed settings; see `recipe`.

    Raises:
        InputError: an unusable setting, before the run starts; or a full disk.
        RuntimeError: the training failed; the message gives the command that resumes the run.
    """
    from polypool.infra.paths import here, home
    from polypool.infra.spec import trust_modules
    from polypool.infra.tracking import Tracker, tracking_uri
    from polypool.pipelines.recipes.arguments import begun_with
    from polypool.pipelines.recipes.load import derive
    from polypool.pipelines.training.train import start
    from polypool.tasks.run import Run, located, modules

    if isinstance(run, Run):
        run = derive(run, **settings)
        trust_modules(*modules(run))
        run = located(run, here)
    else:
        run = recipe(run, **settings)
    run = begun_with(run)
    tracker = Tracker.attach(tracking_uri(home()), start(run), running=False)
    return TrainedRun(id=tracker.run_id, metrics=tracker.metrics())


@needed()
def load(
    source: str | Path,
    *,
    data: OtherData | None = None,
    other_data: bool = False,
    trust: Sequence[str] = (),
) -> TrainedModel:
    """Return the trained model of a run, or of a folder that `polypool export` wrote.

    Args:
        source: a run, by its id, a beginning of it, its name or `latest`; the folder, or its URL: `hf://user/name`, or
            `hf://user/name@revision`.
        data: another corpus, to evaluate and search the model on: `pp.OtherData(corpus=..., features=...)`.
        other_data: evaluate and search the run's corpus and features even if they changed since its training.
        trust: modules that the model may import as `module:Name`, such as `("my_package.parts",)`.

    Raises:
        InputError: an unknown run or folder, one without a model, or an untrusted module.
    """
    from polypool.pipelines.models.trained import OWN
    from polypool.pipelines.models.trained import load as load_model

    if not isinstance(source, str | Path):
        raise InputError(f"a trained model is named by the id of its run or by its folder, not {source!r}")
    if isinstance(trust, str):
        raise InputError(f"trust takes several modules: trust=({trust!r},)")
    return load_model(source, data=data or OWN, other_data=other_data, trust=trust)


@needed()
def export(
    source: str,
    out: str | Path,
    *,
    license: str = "",
    private: bool = False,
    trust: Sequence[str] = (),
) -> TrainedModel:
    """Write the trained model of a run as one folder with a model card, and return it loaded.

    Args:
        source: a run, as in `load`; or an exported folder, which is copied.
        out: new folder, or its URL; `hf://user/name` is a repository on the Hugging Face hub, which is created if
            needed and gets one commit.
        license: identifier of the hub for the model's licence, such as `apache-2.0`; if empty, none is stated.
        private: make a new repository private.
        trust: as in `load`.

    Raises:
        InputError: an unknown run or model, a folder in use, or a hub that refuses or does not answer.
    """
    from polypool.pipelines.models.exporting import export as export_model

    return export_model(source, out, license=license, private=private, trust=trust)


@needed()
def runs(experiment: str = "polypool", *, finished: bool = True) -> pd.DataFrame:
    """Return the runs of an MLflow experiment, latest first, with tags, parameters and metrics as columns.

    Args:
        experiment: name of the experiment.
        finished: leave out runs that failed or are running.

    Raises:
        InputError: the tracking server does not respond, or has no such experiment.
    """
    import pandas as pd

    from polypool.infra.paths import home
    from polypool.infra.tracking import find_runs, tracking_uri
    from polypool.pipelines.comparison.grouping import DIGESTS

    records = find_runs(tracking_uri(home()), experiment, finished=finished)
    rows = []
    for run in records:
        own = {"name": run.name, "status": run.status}
        digests = {name: run.tags[name] for name in DIGESTS if name in run.tags}
        # settings of these names do not replace them
        rows.append({**own, **run.tags, **run.params, **run.metrics, **digests, **own})
    return pd.DataFrame(rows, index=pd.Index([run.run_id for run in records], name="run_id"))


@needed()
def compare(
    experiment: str = "polypool",
    *,
    metric: str = "",
    protocol: str = "",
    data: str | Sequence[str] = (),
    features: str | Sequence[str] = (),
) -> pd.DataFrame:
    """Return a row for each aggregator of each task, data set and protocol: mean, deviation, differences and costs.

    Args:
        experiment: name of the MLflow experiment.
        metric: metric to rank by (default: each task's primary metric).
        protocol: protocol to show (default: all).
        data: data sets to show (default: all).
        features: features to show, by the folders of their stores (default: all).

    Raises:
        InputError: nothing to compare, or an unknown metric or protocol.
    """
    from polypool.infra.paths import home
    from polypool.infra.tracking import tracking_uri
    from polypool.pipelines.comparison import comparison as comparing
    from polypool.pipelines.comparison.choice import Choice

    data, features = ((of,) if isinstance(of, str) else tuple(of) for of in (data, features))
    choice = Choice(data=data, features=features)
    comparison = comparing.compare(
        tracking_uri(home()), experiment, metric=metric, protocol=protocol, choice=choice
    )
    return comparison.decisive
