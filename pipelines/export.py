"""`python -m pipelines.export RUN_ID --out DIR`: the best model of a run as one folder that loads in five lines.

With `--mlflow` it is kept in MLflow as a model of the run, linked to its scores and their data, which
`mlflow.pyfunc.load_model` and `mlflow models serve` take; `--registered-name NAME --alias champion` registers it.
With `--onnx` the folder has graphs, too, that need neither Python nor torch.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from infra.errors import InputError, command
from infra.paths import home
from infra.process.lease import Lease
from infra.storage.places import Url, place
from infra.tracking import Tracker, tracking_uri

if TYPE_CHECKING:
    from pipelines.models import TrainedModel

README = "README.md"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export, and where to."""

    run_id: tyro.conf.Positional[str]
    """A run that was trained."""
    out: Path | None = None
    """Folder to make, or its URL; it must not exist yet, or be empty."""
    onnx: bool = False
    """Write ONNX graphs beside the weights, which take batches and sets of any size."""
    mlflow: bool = False
    """Keep it in MLflow, as a model that can be served."""
    registered_name: str = ""
    """Register that model as the next version of this name."""
    alias: str = ""
    """Let this alias, such as `champion`, mean that version."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run may name, as module:Name; once for each."""


def export(run_id: str, out: Path | Url, *, onnx: bool = False, trust: Sequence[str] = ()) -> TrainedModel:
    """Write the best model of a run to the folder or URL `out`, and return it loaded; see `pipelines.models.load`.

    The folder appears whole or not at all; in object storage, `run.json`, without which it is none, comes last.

    Raises:
        InputError: no such run, it has no model, the folder is in use, or `onnx` is asked for and the model has no such
            form (`pipelines.exporting.graphs`).
    """
    out = place(out)
    if isinstance(out, Url):
        return _export_to_url(run_id, out, onnx=onnx, trust=trust)
    out = out.absolute()
    with Lease.take(out.with_name(f".{out.name}.lock"), of=f"{out}: another export writes this folder"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: exists already; choose another folder with --out")
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
            part = Path(temporary) / "part"
            part.mkdir()
            trained = _write(run_id, part, name=out.name, onnx=onnx, trust=trust)
            os.replace(part, out)
    return trained


def _export_to_url(run_id: str, out: Url, *, onnx: bool, trust: Sequence[str]) -> TrainedModel:
    from infra.storage import remote
    from pipelines.training.best_checkpoint import RUN

    if remote.exists(out / RUN):
        raise InputError(f"{out}: exists already; choose another folder with --out")
    with tempfile.TemporaryDirectory(prefix="polypool.") as part:
        trained = _write(run_id, Path(part), name=str(out), onnx=onnx, trust=trust)
        for file in sorted(Path(part).iterdir(), key=lambda file: file.name == RUN):
            remote.upload(file, out / file.name)
    return trained


def _write(run_id: str, part: Path, *, name: str, onnx: bool = False, trust: Sequence[str]) -> TrainedModel:
    """Write all files of an export to an empty folder, whose last name will be another."""
    from pipelines.models import load
    from pipelines.training.best_checkpoint import ASSETS, RUN, WEIGHTS, best_checkpoint

    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    checkpoint = best_checkpoint(tracker)
    trained = load(checkpoint, trust=trust)
    for file in (WEIGHTS, RUN, ASSETS):
        shutil.copyfile(checkpoint / file, part / file)
    more = _write_onnx(trained, part) if onnx else ""
    (part / README).write_text(_readme(tracker, trained, name) + more)
    return trained


def _write_onnx(trained: TrainedModel, part: Path) -> str:
    """Write the graphs; return what the folder's description says of them."""
    from pipelines.exporting.graphs import described, write_graphs

    graphs, left_out = write_graphs(trained, part)
    if left_out:
        print(f"note: embeddings are to be compared by other means: {left_out}", file=sys.stderr)
    return described(graphs, trained)


def example(trained: TrainedModel, folder: str) -> str:
    """Return a few lines that load a model and use it, as far as it reads what is in no corpus."""
    from tasks.abilities import Answers, ReadsInputs
    from tasks.models.base import RetrievalModel
    from tasks.run import modules

    named = modules(trained.run)
    trust = f", trust={named!r}" if named else ""
    lines = ["import polypool as pp", "", f"model = pp.load({folder!r}{trust})"]
    adapter, answers = trained.adapter, isinstance(trained.adapter, Answers)
    if not isinstance(adapter, ReadsInputs) or not (answers or isinstance(trained.model, RetrievalModel)):
        return "\n".join([*lines, "print(sorted(model.adapter.assets))", "print(model.model)"])
    visuals = '["image.jpg"]'
    if adapter.visual_dim:
        lines.insert(0, "import numpy as np")
        visuals = f"[np.random.rand(36, {adapter.visual_dim})]  # features (N, F) of each image or video"
    use = "answers" if answers else "scores"
    text = "what is in the picture?" if answers else "a dog on the grass"
    return "\n".join([*lines, f"visuals = {visuals}", f'print(model.{use}(visuals, ["{text}"]))'])


def _readme(tracker: Tracker, trained: TrainedModel, folder: str) -> str:
    from encoders.backbones.again import spec_again
    from pipelines.training.best_checkpoint import ASSETS
    from tasks.inputs.source import FEATURES

    run, metrics = trained.run, tracker.metrics()
    names = [name for name in sorted(metrics) if name.startswith(f"{run.protocol}/") and name.count("/") == 1]
    scores = ", ".join(f"{name} {metrics[name]:.2f}" for name in names) or "none were logged"
    features, assets = tracker.tag("data.features"), trained.adapter.assets
    extractors = {
        "Images or videos": assets.get(FEATURES, {}).get("source", {}).get("extractor"),
        "Texts": assets.get("texts", {}).get("extractor"),
    }
    return "\n\n".join(
        [
            "# A trained model of polypool",
            f"`{run.recipe}` with `{run.aggregator}`, task `{run.task}`, data `{run.data.dataset}`, seed {run.seed}: "
            f"run `{tracker.run_id}`, commit `{tracker.tag('git_commit') or 'unknown'}`. Scores: {scores}.",
            *(
                [f"It reads features like those of the store with the digest `{features}`."]
                if features
                else []
            ),
            *(
                f"{what} are described first by `{spec_again(said, where=ASSETS)}`, looked for here and on the hub."
                for what, said in extractors.items()
                if said
            ),
            f"```python\n{example(trained, folder)}\n```",
            "`encode_visual` and `encode_text` give embeddings where the model has such. `run.json` is the whole run,\n"
            "`assets.json` what is needed beside the weights, such as the vocabulary.\n",
        ]
    )


def to_mlflow(
    run_id: str, *, registered_name: str = "", alias: str = "", trust: Sequence[str] = ()
) -> tuple[str, str]:
    """Keep the best model of a run in MLflow; return its address there, and the version that was registered, if any.

    Args:
        run_id: the run.
        registered_name: of which it becomes the next version; none where empty.
        alias: that is to mean this version; none where empty.
        trust: modules whose code the run may name, which serving runs, too.

    Raises:
        InputError: no such run, it has no model or one that cannot be served, or MLflow refuses a name.
    """
    from infra.tracking.models import check_names, register
    from pipelines.exporting.logged import log_exported

    check_names(registered_name, alias)
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    with tempfile.TemporaryDirectory(prefix="polypool.") as part:
        trained = _write(run_id, Path(part), name="model", trust=trust)
        model = log_exported(tracker, trained, Path(part))
    version = register(tracker, model, name=registered_name, alias=alias) if registered_name else ""
    return model, version


@command
def main() -> None:
    """Export, and say how to load."""
    options = tyro.cli(ExportOptions, prog="python -m pipelines.export", description=__doc__)
    if options.out is None and not options.mlflow:
        raise InputError("say where to: --out FOLDER, or --mlflow, or both")
    if options.out is None and options.onnx:
        raise InputError("--onnx is of the folder that --out makes; give --out, too")
    if not options.mlflow and (options.registered_name or options.alias):
        raise InputError("--registered-name and --alias are of models in MLflow; give --mlflow, too")
    if options.out is not None:
        trained = export(options.run_id, options.out, onnx=options.onnx, trust=options.trust)
        size, out = sum(x.nbytes for x in trained.model.state_dict().values()), place(options.out)
        print(f"written to {out}: weights of {size / 1e6:,.1f} MB\n\n{example(trained, str(out))}")
    if options.mlflow:
        name, alias = options.registered_name, options.alias
        model, version = to_mlflow(options.run_id, registered_name=name, alias=alias, trust=options.trust)
        if version:
            print(f"registered as version {version} of {name}{f', {alias}' if alias else ''}")
            model = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
        uri = shlex.quote(tracking_uri(home()))
        print(
            f"kept as {model}; to serve it:\n\n  MLFLOW_TRACKING_URI={uri} mlflow models serve -m {shlex.quote(model)} "
            "--env-manager local --port 5001"
        )


if __name__ == "__main__":
    main()
