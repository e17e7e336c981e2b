"""`polypool export RUN_ID --out DIR`: Write the best model of a run as one folder that loads in five lines.

With `--out hf://user/name` the folder is a repository on the Hugging Face hub, which is created if necessary and
receives one commit; `polypool.load("hf://user/name")` loads it elsewhere. If RUN_ID is an exported folder, it is copied
there unchanged, for example with an edited README.

`--mlflow` logs it in MLflow as a model of the run, linked to its scores and their data, for `mlflow.pyfunc.load_model`
and `mlflow models serve`; `--registered-name NAME --alias champion` registers it.
"""

from __future__ import annotations

from pathlib import Path

import tyro

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.process.command import NamedRun, Repeated, command
from polypool.infra.process.output import Step, print_next
from polypool.infra.storage import place
from polypool.infra.tracking import resolve_run, tracking_uri


def export(
    run_id: NamedRun = "",
    *,
    out: Path | None = None,
    mlflow: bool = False,
    registered_name: str = "",
    alias: str = "",
    license: str = "",
    private: bool = False,
    trust: Repeated = (),
) -> None:
    """Export the best model of a run.

    Args:
        run_id: a run, by its id or a prefix of it, its name, or `latest`, or an exported folder.
        out: output folder, which must not exist or be empty; or its URL, such as hf://user/name.
        mlflow: log it in MLflow as a servable model.
        registered_name: register the MLflow model as the next version of this name.
        alias: alias of that version, such as `champion`.
        license: identifier of the model's licence on the hub, such as apache-2.0 (default: none stated).
        private: make a new repository on the hub private.
        trust: trusted module whose code the run may name as module:Name; repeatable.
    """
    if not run_id:
        resolve_run(tracking_uri(home()), run_id)
    if out is None and not mlflow:
        raise InputError("say where to: --out FOLDER, or --mlflow, or both")
    if out is None and license:
        raise InputError("--license is of the folder that --out makes; give --out, too")
    if not mlflow and (registered_name or alias):
        raise InputError("--registered-name and --alias are of models in MLflow; give --mlflow, too")
    from polypool.pipelines.models import exporting
    from polypool.pipelines.models.card import example

    steps: list[Step] = []
    if out is not None:
        trained = exporting.export(run_id, out, license=license, private=private, trust=trust)
        size = sum(x.nbytes for x in trained.model.state_dict().values())
        print(
            f"written to {place(out)}: weights of {size / 1e6:,.1f} MB\n\n{example(trained, str(place(out)))}"
        )
        steps.append(("serve it as a page and an HTTP API", ("serve", out)))
    if mlflow:
        model, version = exporting.export_to_mlflow(
            run_id, registered_name=registered_name, alias=alias, trust=trust
        )
        if version:
            print(f"registered as version {version} of {registered_name}{f', {alias}' if alias else ''}")
            model = f"models:/{registered_name}{f'@{alias}' if alias else f'/{version}'}"
        print(f"kept as {model}")
        server = ("$env", f"MLFLOW_TRACKING_URI={tracking_uri(home())}", "mlflow", "models", "serve")
        steps.append(("serve it by MLflow", (*server, "-m", model, "--env-manager", "local", "--port", 5001)))
    print_next(*steps)


@command
def main() -> None:
    tyro.cli(export, prog="polypool export", description=__doc__)
