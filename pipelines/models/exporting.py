"""Export of the best model of a run: as a folder, here or in object storage, or as a model of MLflow with its code."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polypool
from polypool.encoders.adaptations import merge
from polypool.infra.digests import DIGESTS, refuse_damaged, write_digests
from polypool.infra.errors import InputError
from polypool.infra.locks import Lock
from polypool.infra.paths import home
from polypool.infra.storage import CARD, Url, exists, is_hub, place, upload
from polypool.infra.tracking import (
    HOME,
    Tracker,
    check_names,
    log_model,
    register,
    requirements,
    resolve_run,
    tracking_uri,
)
from polypool.pipelines.models.card import model_card
from polypool.pipelines.models.table_rows import check_servable, input_example, makes_sets, signature
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.training.checkpoint import ASSETS, RUN, WEIGHTS, best_checkpoint, write_model
from polypool.tasks.corpus_task import refuse_video_files
from polypool.tasks.models.parts import is_adapted, without_adaptation
from polypool.tasks.run import modules, portable, to_record
from polypool.tasks.scoring.records import VERSION_TAG

_PACKAGES = (
    *("mlflow", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "pillow"),
    *("filelock", "regex", "simplejpeg", "tqdm", "tyro", "xxhash"),
)
"""Packages that MLflow's server needs; the code of this project is saved with the model."""


def export(
    source: str,
    out: str | Path | Url,
    *,
    license: str = "",
    private: bool = False,
    trust: Sequence[str] = (),
) -> TrainedModel:
    """Write the best model of a run to a folder or URL, and return it loaded.

    A folder gets its name when it is complete; in object storage, `run.json`, which marks a model, is written last. A
    repository on the hub (`hf://user/name`) gets one commit, and an earlier model stays in its history.

    Args:
        source: id of the run; or an exported folder, which is copied with its README.
        out: the folder, which must be new or empty; or a URL.
        license: identifier of the hub, such as apache-2.0; if empty, none is stated.
        private: make a new repository on the hub private.
        trust: modules whose code the run may name.

    Raises:
        InputError: no such run, it has no model, the folder is in use, or the storage refuses or does not answer.
    """
    out = place(out)
    if private and not is_hub(out):
        raise InputError("--private is of a repository on the hub; write to one, such as hf://user/name")
    if isinstance(out, Url):
        if not is_hub(out) and exists(out / RUN):
            raise InputError(f"{out}: exists already; choose another folder with --out")
        with tempfile.TemporaryDirectory(prefix="polypool.") as temporary:
            part = Path(temporary)
            trained = _write(source, part, name=str(out), license=license, trust=trust)
            names = sorted((file.name for file in part.iterdir()), key=lambda name: name == RUN)
            about = f"Export {trained.run.label} with {trained.run.aggregator}"
            upload(part, out, names, about=about, private=private)
        return trained
    out = out.absolute()
    with Lock(out.with_name(f".{out.name}.lock"), of=f"{out}: another export writes this folder"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: exists already; choose another folder with --out")
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
            part = Path(temporary) / "part"
            part.mkdir()
            trained = _write(source, part, name=out.name, license=license, trust=trust)
            os.replace(part, out)
    return trained


def _write(source: str, part: Path, *, name: str, license: str, trust: Sequence[str]) -> TrainedModel:
    """Write the files of an export to an empty folder: from a run, or copied from an exported folder."""
    folder = place(source)
    if isinstance(folder, Url) or not ("/" in source or (source and folder.is_dir())):
        return write_export(source, part, name=name, license=license, trust=trust)[1]
    if license:
        raise InputError(
            f"{folder}: an exported folder is copied as it is; --license is of the export of a run"
        )
    trained = load(folder, trust=trust)
    for file in (WEIGHTS, RUN, ASSETS, DIGESTS, CARD):
        if (folder / file).exists():
            shutil.copyfile(folder / file, part / file)
    refuse_damaged(part, then="export the run anew")
    if (card := part / CARD).exists():
        card.write_text(card.read_text().replace(f"pp.load({folder.name!r}", f"pp.load({name!r}"))
    return trained


def write_export(
    run_id: str, folder: Path, *, name: str, license: str = "", trust: Sequence[str]
) -> tuple[Tracker, TrainedModel]:
    """Write the files of an export to an empty folder, later called `name`; return the run's tracker and the model.

    Paths below the project's home are written relative to it.
    """
    uri = tracking_uri(home())
    tracker = Tracker.attach(uri, resolve_run(uri, run_id), running=False)
    checkpoint = best_checkpoint(tracker)
    trained = load(checkpoint, trust=trust)
    trained = replace(trained, run=portable(trained.run, tracker.tag(HOME)))
    text = model_card(tracker, trained, name=name, license=license)
    if is_adapted(trained.run):
        merge(trained.model)
        run, digests = without_adaptation(trained.run), trained.training_data
        write_model(folder, trained.model, run, trained.adapter, digests=digests)
        trained = load(folder, trust=trust)
    else:
        for file in (WEIGHTS, ASSETS):
            shutil.copyfile(checkpoint / file, folder / file)
        record = to_record(trained.run, trained.training_data)
        (folder / RUN).write_text(json.dumps(record, indent=1))
        write_digests(folder, (WEIGHTS, RUN, ASSETS))
    (folder / CARD).write_text(text)
    return tracker, trained


def export_to_mlflow(
    run_id: str, *, registered_name: str = "", alias: str = "", trust: Sequence[str] = ()
) -> tuple[str, str]:
    """Log the best model of a run in MLflow; return its URI, and the registered version, if any.

    Args:
        run_id: the run.
        registered_name: register it as the next version of this name; not if empty.
        alias: alias of this version; none if empty.
        trust: modules whose code the run may name, and which serving executes.

    Raises:
        InputError: no such run, it has no model or one that cannot be served, or MLflow refuses a name.
    """
    check_names(registered_name, alias)
    with tempfile.TemporaryDirectory(prefix="polypool.") as folder:
        part = Path(folder) / "model"
        part.mkdir()
        tracker, trained = write_export(run_id, part, name="model", trust=trust)
        package, ignored = Path(polypool.__file__).parent, shutil.ignore_patterns("__pycache__")
        code = shutil.copytree(
            package, Path(folder) / package.name, ignore=ignored
        )  # copies the targets of a checkout's links
        model = _log_model(tracker, trained, part, code)
    version = register(tracker, model, name=registered_name, alias=alias) if registered_name else ""
    return model, version


def _log_model(tracker: Tracker, trained: TrainedModel, folder: Path, code: Path) -> str:
    from mlflow.models import Model
    from mlflow.pyfunc import save_model

    from polypool.pipelines.models import pyfunc  # imports mlflow and pandas

    check_servable(trained)
    refuse_video_files(trained.adapter, "models of MLflow")
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
    protocols = [(f"{name}/", name.partition("/")[0] if "/" in name else "test") for name in names]
    scores = [("test/", "test"), ("dev/best_", "val"), *protocols]
    return log_model(tracker, save, name=trained.run.recipe or trained.run.task, scores=scores)
