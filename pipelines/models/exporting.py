"""Export of the best model of a run: as a folder, here or in object storage, or as a model of MLflow with its code."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polypool
from polypool import aggregators, encoders, infra, pipelines, tasks
from polypool.encoders.backbones import recorded_spec
from polypool.infra.digests import write_digests
from polypool.infra.errors import InputError
from polypool.infra.lease.on_disk import DiskLease
from polypool.infra.paths import home
from polypool.infra.storage import remote
from polypool.infra.storage.places import Url, place
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.infra.tracking.mlflow_private import check_names
from polypool.infra.tracking.models import log_model, register, requirements
from polypool.pipelines.models.table_rows import check_servable, input_example, makes_sets, signature
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.training.checkpoints.best import ASSETS, RUN, WEIGHTS, best_checkpoint
from polypool.tasks.abilities import Answers, ReadsInputs
from polypool.tasks.inputs.corpus_inputs import FEATURES
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import modules
from polypool.tasks.scoring.records import VERSION_TAG

_PACKAGES = (
    *("mlflow", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "pillow"),
    *("filelock", "tqdm", "tyro", "xxhash"),
)
"""What serving by MLflow imports beside this project, whose own code is kept with the model."""


def export(run_id: str, out: Path | Url, *, onnx: bool = False, trust: Sequence[str] = ()) -> TrainedModel:
    """Write the best model of a run to the folder or URL `out`, and return it loaded.

    The folder appears whole or not at all; in object storage, `run.json`, without which it is not a model, comes last.

    Raises:
        InputError: no such run, it has no model, the folder is in use, or `onnx` is set and the model has no such form
            (`polypool.pipelines.models.onnx`).
    """
    out = place(out)
    if isinstance(out, Url):
        return _export_to_url(run_id, out, onnx=onnx, trust=trust)
    out = out.absolute()
    with DiskLease.take(out.with_name(f".{out.name}.lock"), of=f"{out}: another export writes this folder"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: exists already; choose another folder with --out")
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
            part = Path(temporary) / "part"
            part.mkdir()
            _, trained = write_export(run_id, part, name=out.name, onnx=onnx, trust=trust)
            os.replace(part, out)
    return trained


def _export_to_url(run_id: str, out: Url, *, onnx: bool, trust: Sequence[str]) -> TrainedModel:
    if remote.exists(out / RUN):
        raise InputError(f"{out}: exists already; choose another folder with --out")
    with tempfile.TemporaryDirectory(prefix="polypool.") as part:
        _, trained = write_export(run_id, Path(part), name=str(out), onnx=onnx, trust=trust)
        for file in sorted(Path(part).iterdir(), key=lambda file: file.name == RUN):
            remote.upload(file, out / file.name)
    return trained


def write_export(
    run_id: str, folder: Path, *, name: str, onnx: bool = False, trust: Sequence[str]
) -> tuple[Tracker, TrainedModel]:
    """Write the files of an export to an empty folder, later called `name`; return the run's tracker and the model."""
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    checkpoint = best_checkpoint(tracker)
    trained = load(checkpoint, trust=trust)
    for file in (WEIGHTS, RUN, ASSETS):
        shutil.copyfile(checkpoint / file, folder / file)
    write_digests(folder, (WEIGHTS, RUN, ASSETS))
    text = _readme(tracker, trained, name)
    if onnx:
        from polypool.pipelines.models.onnx import describe_graphs, write_graphs  # of an extra

        graphs, no_similarity = write_graphs(trained, folder)
        text += describe_graphs(graphs)
        if no_similarity:
            print(f"note: embeddings are to be compared by other means: {no_similarity}", file=sys.stderr)
    (folder / "README.md").write_text(text)
    return tracker, trained


def example(trained: TrainedModel, folder: str) -> str:
    """Return a few lines of Python that load a model and use it, as far as it reads input that is in no corpus."""
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
    run, metrics = trained.run, tracker.metrics()
    names = [name for name in sorted(metrics) if name.startswith(f"{run.protocol}/") and name.count("/") == 1]
    scores = ", ".join(f"{name} {metrics[name]:.2f}" for name in names) or "none were logged"
    paragraphs = [
        "# A trained model of polypool",
        f"`{run.recipe}` with `{run.aggregator}`, task `{run.task}`, data `{run.data.dataset}`, seed {run.seed}: "
        f"run `{tracker.run_id}`, commit `{tracker.tag('git_commit') or 'unknown'}`. Scores: {scores}.",
    ]
    if features := tracker.tag("data.features"):
        paragraphs.append(f"It reads features like those of the store with the digest `{features}`.")
    assets = trained.adapter.assets
    extractors = {
        "Images or videos": assets.get(FEATURES, {}).get("source", {}).get("extractor"),
        "Texts": assets.get("texts", {}).get("extractor"),
    }
    for what, extractor in extractors.items():
        if extractor:
            spec = recorded_spec(extractor, where=ASSETS)
            paragraphs.append(f"{what} are described first by `{spec}`, looked for here and on the hub.")
    paragraphs += [
        f"```python\n{example(trained, folder)}\n```",
        "`encode_visual` and `encode_text` give embeddings where the model has such. `run.json` is the whole run,\n"
        "`assets.json` what is needed beside the weights, such as the vocabulary.\n",
    ]
    return "\n\n".join(paragraphs)


def export_to_mlflow(
    run_id: str, *, registered_name: str = "", alias: str = "", trust: Sequence[str] = ()
) -> tuple[str, str]:
    """Keep the best model of a run in MLflow; return its address there, and the registered version, if any.

    Args:
        run_id: the run.
        registered_name: registers it as the next version of this name, unless empty.
        alias: set to this version, unless empty.
        trust: modules whose code the run may name, which serving runs, too.

    Raises:
        InputError: no such run, it has no model or one that cannot be served, or MLflow refuses a name.
    """
    check_names(registered_name, alias)
    with tempfile.TemporaryDirectory(prefix="polypool.") as folder:
        part = Path(folder) / "model"
        part.mkdir()
        tracker, trained = write_export(run_id, part, name="model", trust=trust)
        model = _log_model(tracker, trained, part, _copy_code(Path(folder)))
    version = register(tracker, model, name=registered_name, alias=alias) if registered_name else ""
    return model, version


def _log_model(tracker: Tracker, trained: TrainedModel, folder: Path, code: Path) -> str:
    from mlflow.models import Model
    from mlflow.pyfunc import save_model

    from polypool.pipelines.models import pyfunc  # imports mlflow and pandas

    check_servable(trained)
    sets = makes_sets(trained)

    def save(path: Path, model_id: str) -> None:
        save_model(
            path,
            python_model=pyfunc.__file__,
            artifacts={pyfunc.MODEL: str(folder)},
            model_config={pyfunc.TRUST: list(modules(trained.run)), pyfunc.SETS: sets},
            code_paths=[str(code)],
            signature=signature(trained, sets=sets),
            input_example=input_example(trained),
            pip_requirements=requirements(_PACKAGES),
            mlflow_model=Model(run_id=tracker.run_id, model_id=model_id),
        )

    names = [name.removeprefix(VERSION_TAG) for name in tracker.all_tags() if name.startswith(VERSION_TAG)]
    splits = {name: name.partition("/")[0] for name in names if name.startswith(("val/", "train/"))}
    protocols = [(f"{name}/", splits.get(name, "test")) for name in names]
    scores = [("test/", "test"), ("dev/best_", "val"), *protocols]
    return log_model(tracker, save, name=trained.run.recipe or trained.run.task, scores=scores)


def _copy_code(folder: Path) -> Path:
    """Copy this project as the one package `polypool`, from wherever its parts are installed."""
    code = folder / "polypool"
    for package in (polypool, aggregators, encoders, infra, pipelines, tasks):
        source = Path(package.__file__).parent
        to = code if package is polypool else code / source.name
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return code
