"""The best model of a run as a model of MLflow, with the code that it needs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polypool
from polypool import aggregators, encoders, infra, pipelines, tasks
from polypool.infra.tracking import Tracker
from polypool.infra.tracking.mlflow_private import check_names
from polypool.infra.tracking.models import log_model, register, requirements
from polypool.pipelines.models import pyfunc
from polypool.pipelines.models.export import write_export
from polypool.pipelines.models.rows import check_servable, input_example, makes_sets, signature
from polypool.pipelines.models.trained import TrainedModel
from polypool.tasks.run import modules
from polypool.tasks.scoring.records import VERSION_TAG

_PACKAGES = (
    *("mlflow", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "pillow"),
    *("filelock", "tqdm", "tyro", "xxhash"),
)
"""What serving imports beside this project, whose own code is kept with the model."""


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
        model = _log(tracker, trained, part, _copy_code(Path(folder)))
    version = register(tracker, model, name=registered_name, alias=alias) if registered_name else ""
    return model, version


def _log(tracker: Tracker, trained: TrainedModel, folder: Path, code: Path) -> str:
    check_servable(trained)
    sets = makes_sets(trained)

    def save(path: Path, model_id: str) -> None:
        from mlflow.models import Model
        from mlflow.pyfunc import save_model

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

    name = trained.run.recipe or trained.run.task
    return log_model(tracker, save, name=name, scores=_splits_of_scores(tracker))


def _copy_code(folder: Path) -> Path:
    """Copy this project as the one package `polypool`, wherever its parts lie."""
    code = folder / "polypool"
    for package in (polypool, aggregators, encoders, infra, pipelines, tasks):
        source = Path(package.__file__).parent
        to = code if package is polypool else code / source.name
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return code


def _splits_of_scores(tracker: Tracker) -> list[tuple[str, str]]:
    """Return the prefixes of the names of a run's scores, each with its split."""
    names = [name.removeprefix(VERSION_TAG) for name in tracker.all_tags() if name.startswith(VERSION_TAG)]
    splits = {name: name.partition("/")[0] for name in names if name.startswith(("val/", "train/"))}
    protocols = [(f"{name}/", splits.get(name, "test")) for name in names]
    return [("test/", "test"), ("dev/best_", "val"), *protocols]
