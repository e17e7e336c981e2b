"""An exported folder as a model of MLflow's, with the code that it needs."""

from __future__ import annotations

from pathlib import Path

import aggregators
import encoders
import infra
import pipelines
import tasks
from infra.tracking import Tracker
from infra.tracking.models import log_model, requirements
from pipelines.exporting import served
from pipelines.exporting.columns import check_servable, input_example, makes_sets, signature
from pipelines.models import TrainedModel
from tasks.run import modules
from tasks.scoring.records import VERSION_TAG

_PACKAGES = (
    *("mlflow", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "pillow"),
    *("filelock", "tqdm", "tyro", "xxhash"),
)
"""What serving imports beside this project, whose own code is kept with the model."""


def log_exported(tracker: Tracker, trained: TrainedModel, folder: Path) -> str:
    """Keep an exported folder as a model of its run; return its address in MLflow.

    Args:
        tracker: of the run.
        trained: the folder, loaded.
        folder: as `pipelines.export.export` writes it.

    Raises:
        InputError: the model reads no rows, or MLflow refuses.
    """
    check_servable(trained)
    sets = makes_sets(trained)

    def save(path: Path, model_id: str) -> None:
        from mlflow.models import Model
        from mlflow.pyfunc import save_model

        save_model(
            path,
            python_model=served.__file__,
            artifacts={served.MODEL: str(folder)},
            model_config={served.TRUST: list(modules(trained.run)), served.SETS: sets},
            code_paths=[
                str(Path(of.__file__).parent) for of in (aggregators, encoders, infra, pipelines, tasks)
            ],
            signature=signature(trained, sets=sets),
            input_example=input_example(trained),
            pip_requirements=requirements(_PACKAGES),
            mlflow_model=Model(run_id=tracker.run_id, model_id=model_id),
        )

    return log_model(tracker, save, name=f"{trained.run.recipe or trained.run.task}", scores=_scores(tracker))


def _scores(tracker: Tracker) -> list[tuple[str, str]]:
    """Return beginnings of names of a run's scores, with the split that each is of."""
    protocols = [
        name.removeprefix(VERSION_TAG) for name in tracker.all_tags() if name.startswith(VERSION_TAG)
    ]
    splits = {name: name.partition("/")[0] for name in protocols if name.startswith(("val/", "train/"))}
    return [
        ("test/", "test"),
        ("dev/best_", "val"),
        *((f"{name}/", splits.get(name, "test")) for name in protocols),
    ]
