"""`polypool export RUN_ID --out DIR`: Write the best model of a run as one folder that loads in five lines.

With `--mlflow` it is kept in MLflow as a model of the run, linked to its scores and their data, which
`mlflow.pyfunc.load_model` and `mlflow models serve` take; `--registered-name NAME --alias champion` registers it.
With `--onnx` the folder has graphs, too, that need neither Python nor torch.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.storage.places import place
from polypool.infra.tracking import tracking_uri


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
    """Point this alias, such as `champion`, to that version."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run may name, as module:Name; once for each."""


@command
def main() -> None:
    options = tyro.cli(ExportOptions, prog="polypool export", description=__doc__)
    if options.out is None and not options.mlflow:
        raise InputError("say where to: --out FOLDER, or --mlflow, or both")
    if options.out is None and options.onnx:
        raise InputError("--onnx is of the folder that --out makes; give --out, too")
    if not options.mlflow and (options.registered_name or options.alias):
        raise InputError("--registered-name and --alias are of models in MLflow; give --mlflow, too")
    if options.out is not None:
        from polypool.pipelines.models.export import example, export

        trained = export(options.run_id, options.out, onnx=options.onnx, trust=options.trust)
        size, out = sum(x.nbytes for x in trained.model.state_dict().values()), place(options.out)
        print(f"written to {out}: weights of {size / 1e6:,.1f} MB\n\n{example(trained, str(out))}")
    if options.mlflow:
        from polypool.pipelines.models.mlflow_model import export_to_mlflow

        name, alias = options.registered_name, options.alias
        model, version = export_to_mlflow(
            options.run_id, registered_name=name, alias=alias, trust=options.trust
        )
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
